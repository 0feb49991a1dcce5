"""What a model answered so far, batch by batch, and what that scores.

tally = Tally(metric, by_item=True)
tally.add(number, predictions, labels)
tally.score()                       # over all batches so far, in the order of their numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octune.errors import EvaluationError
from octune.evaluation.metrics import Metric
from octune.referee import is_mean
from octune.score import Score

__all__ = ["Tally", "has_groups"]


def has_groups(metric: Metric) -> bool:
    """Whether several rows may make one item."""
    return type(metric).groups is not Metric.groups


class Tally:
    """Answers of one model. ``by_item``: each batch is scored at once, and only its items' scores are kept,
    not the model's outputs.
    """

    def __init__(self, metric: Metric, *, by_item: bool) -> None:
        self._metric, self._by_item = metric, by_item
        self._scores: dict[int, Score] = {}
        self._rows: dict[int, tuple[Sequence[Any], Sequence[Any]]] = {}

    def add(self, number: int, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        """The answers to one batch, and what would have been right."""
        if self._by_item:
            self._scores[number] = self._metric.score(predictions, labels)
        else:
            self._rows[number] = predictions, labels

    def score(self) -> Score:
        """The score over all batches so far."""
        return self._merged() if self._by_item else self._metric.score(*self._flat())

    def counts(self) -> list[int | None]:
        """How many items each batch has, by its number; None for all of them where an item lies across two
        batches.
        """
        if self._by_item:
            return [
                None if score.items is None else score.items.size for _, score in sorted(self._scores.items())
            ]
        seen: set[Any] = set()
        counts: list[int | None] = []
        for _, (_, labels) in sorted(self._rows.items()):
            own = set(self._metric.groups(labels)) if has_groups(self._metric) else range(len(labels))
            if has_groups(self._metric):
                if seen & set(own):
                    return [None] * len(self._rows)
                seen.update(own)
            counts.append(len(own))
        return counts

    def proves_own_items(self, score: Score) -> bool:
        """Whether the items of a part score the same as in the whole: then a user's metric scores each item
        by itself.
        """
        if not is_mean(score) or score.items is None or score.items.size < 4 or np.ptp(score.items) == 0:
            return False
        predictions, labels = self._flat()
        # A third, because half of the data is more likely to have the same mean as all of it.
        some = len(labels) // 3 + 1
        try:
            part = self._metric.score(predictions[:some], labels[:some]).items
        except Exception:  # the user's code need not be made for parts of the data
            return False
        return part is not None and part.shape == (some,) and np.array_equal(part, score.items[:some])

    def _flat(self) -> tuple[list[Any], list[Any]]:
        parts = [part for _, part in sorted(self._rows.items())]
        return [row for rows, _ in parts for row in rows], [label for _, labels in parts for label in labels]

    def _merged(self) -> Score:
        scores = [score for _, score in sorted(self._scores.items())]
        items = [score.items for score in scores if score.items is not None]
        if len(items) != len(scores):
            raise EvaluationError(
                f"The metric {self._metric.name} says that it scores single items, but returned a score "
                "without items."
            )
        hits = [score.hits for score in scores if score.hits is not None]
        together = np.concatenate(hits) if len(hits) == len(scores) else None
        return Score.from_items(np.concatenate(items), hits=together, limits=scores[0].limits)
