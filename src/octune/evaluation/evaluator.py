"""Scoring a model with a metric over evaluation data.

evaluator = MetricEvaluator(backend, batches, get_metric("accuracy"))
baseline, pairing = evaluator.baseline(fp32)                # over all data
evaluator(int8, pairing)                                    # comparable item by item with the baseline
evaluator(int8, pairing, Standard(baseline, criterion))     # stopped as soon as it fails for certain
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from octune.backends.terms import Outputs
from octune.data import Batches
from octune.errors import DataError, EvaluationError, OctuneError, plural
from octune.evaluation.base import SEED, Evaluator, Runner
from octune.evaluation.examples import Example, Models
from octune.evaluation.metrics import Answer, Metric
from octune.evaluation.pairing import Pairing
from octune.evaluation.spread import Answers, Spread
from octune.evaluation.tally import Tally, has_groups
from octune.referee import Referee, Standard
from octune.score import Score
from octune.statistics.sequential import ALPHA

__all__ = ["MetricEvaluator"]


@dataclass(frozen=True)
class _Walk:
    """The order in which batches are scored: stage by stage, and the items and units that a referee sees.
    ``counts`` is how many items each batch has, by its number.
    """

    counts: npt.NDArray[np.int64]
    stages: list[list[int]]
    order: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    shuffled: bool


class MetricEvaluator(Evaluator):
    """A metric over batches of ``(inputs, label)``; over the first ``samples`` items, in whole batches, if
    that is given. ``outputs`` are the names of the outputs that are scored; all, if there are none.

    The baseline is scored in the data's own order. Candidates are scored in blocks that are a random sample
    of the data (``seed``), where it can be picked from or comes in random order; a complete score is the same
    either way.
    """

    def __init__(
        self,
        backend: Runner,
        batches: Batches,
        metric: Metric,
        trial_timeout: float = 0,
        samples: int | None = None,
        seed: int = SEED,
        outputs: Sequence[str] = (),
    ) -> None:
        super().__init__(trial_timeout)
        self._outputs = tuple(outputs)
        self._backend, self._batches, self._metric, self._samples, self._seed = (
            backend,
            batches,
            metric,
            samples,
            seed,
        )
        self.higher_is_better, self.name = metric.higher_is_better, metric.name

    @property
    def spreads(self) -> bool:
        return True

    @property
    def spreads_by_number(self) -> bool:
        return self._batches.count is not None

    def bound(self, backend: Runner | None) -> Self:
        other = super().bound(backend)
        other._backend = backend  # type: ignore[assignment]  # None while it travels
        return other

    def _rehearse(self, model: Any, batch: Any) -> None:
        self._metric.check(*self._answers(model, 0, batch, Pairing()))

    def examples(
        self, models: Models, pairing: Pairing, items: Sequence[int], rows: Callable[[Any, list[int]], Any]
    ) -> list[Example]:
        if self._batches.pick is None or None in pairing.counts:
            return []
        ends = np.cumsum(np.array(pairing.counts, dtype=np.int64))
        found: list[Example] = []
        for item in items:
            number = int(np.searchsorted(ends, item, side="right"))
            place = item - int(ends[number - 1] if number else 0)
            inputs, label = self._backend.split(self._batches.pick(number))
            labels = [] if label is None else _rows(label)
            own = self._rows_of(place, labels)
            part = rows(inputs, own)
            if part is None:
                return []
            fp32, int8 = (
                self._answer_to(model, part, [labels[row] for row in own if labels], pairing)
                for model in models
            )
            about = {} if self._batches.about is None else self._batches.about(number)[place]
            found.append(Example.of(item, fp32, int8, about, part.arrays))
        return found

    def _rows_of(self, place: int, labels: list[Any]) -> list[int]:
        """The rows of a batch that make one of its items."""
        if not has_groups(self._metric):
            return [place]
        groups = list(self._metric.groups(labels))
        own = list(dict.fromkeys(groups))[place]
        return [row for row, group in enumerate(groups) if group == own]

    def _answer_to(self, model: Any, inputs: Any, labels: list[Any], pairing: Pairing) -> Answer:
        """What a model answers to one item."""
        return self._metric.answers(self._metric.predictions_from(self._run(model, inputs), inputs), labels)[
            0
        ]

    def _run(self, model: Any, inputs: Any) -> Outputs:
        """What a model answers: all outputs, or those that were chosen."""
        found = self._backend.run(model, inputs)
        if missing := [name for name in self._outputs if name not in found]:
            raise EvaluationError(
                f"evaluation.outputs names {', '.join(missing)}; the model has {', '.join(found) or 'none'}."
            )
        return {name: found[name] for name in self._outputs} if self._outputs else found

    def _evaluate(self, model: Any, pairing: Pairing) -> tuple[Score, Pairing]:
        tally = Tally(self._metric, by_item=self._metric.items == "own" and not has_groups(self._metric))
        digests, rows = [], 0
        with closing(self._walked(model, pairing)) as walked:
            for number, predictions, labels in walked:
                tally.add(number, predictions, labels)
                digests.append(_digest(labels))
                rows += len(labels)
                self._tell(number + 1, rows, pairing)
                # Whole batches: what belongs together (the windows of one question) shares a batch.
                if self._samples is not None and rows >= self._samples:
                    break
        score = tally.score()
        found = replace(pairing, counts=tuple(tally.counts()), digests=tuple(digests))
        if not pairing.digests:
            if (
                self._metric.items is None
                and score.limits is None
                and tally.proves_own_items(score)
                and _within_unit(score)
            ):
                score = replace(score, limits=(0.0, 1.0))
        elif found.digests != pairing.digests:
            # The data came in another order (a shuffling loader): items cannot be paired with the baseline's.
            score = replace(score, items=None, hits=None, limits=None)
        return score, found

    def _tell(self, batches: int, rows: int, pairing: Pairing) -> None:
        """Say how far a walk over the data has come, if its end is known."""
        count = len(pairing.counts) or self._batches.count
        if self._samples is not None:
            self.progress(min(1.0, rows / self._samples))
        elif count:
            self.progress(min(1.0, batches / count))

    def _sequential(self, model: Any, pairing: Pairing, standard: Standard) -> Score:
        walk = self._walk(pairing, standard.baseline)
        referee = (
            Referee(standard, walk.order, walk.sizes, shuffled=walk.shuffled) if walk is not None else None
        )
        if walk is None or referee is None or not referee.possible:
            return self._evaluate(model, pairing)[0]
        total, seen = walk.order.size, 0
        ends = np.cumsum(walk.counts)
        tally, found, done = (
            Tally(self._metric, by_item=referee.exact),
            np.full(total, np.nan),
            np.zeros(total, dtype=bool),
        )
        with closing(self._walked(model, pairing, [n for stage in walk.stages for n in stage])) as walked:
            for stage in walk.stages:
                for number, predictions, labels in islice(walked, len(stage)):
                    if _digest(labels) != pairing.digests[number]:
                        return self._evaluate(model, pairing)[0]  # not the batch that the baseline saw
                    tally.add(number, predictions, labels)
                    count = int(walk.counts[number])
                    done[ends[number] - count : ends[number]] = True
                    seen += count
                    self.progress(seen / total)
                if not referee.due(seen):
                    continue
                score = tally.score()
                if score.items is None or score.items.size != seen:
                    continue
                found[done] = score.items
                p = referee.p(seen, found[walk.order[:seen]])
                if p <= ALPHA:
                    return replace(score, total=total, p=p, index=np.flatnonzero(done), span=None)
        return tally.score()

    def _walk(self, pairing: Pairing, baseline: Score) -> _Walk | None:
        """How to go through the data so that a part of it speaks for all; None where it must be scored in
        full.
        """
        if baseline.items is None or (self._metric.items is None and baseline.limits is None):
            return None
        counts = np.array([count or 0 for count in pairing.counts], dtype=np.int64)
        if not counts.all() or counts.sum() != baseline.items.size:
            return None
        ends = np.cumsum(counts)
        random = np.random.default_rng(self._seed)
        items = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
        blocks = self._batches.blocks
        if blocks is not None and len(blocks) > 1:
            firsts = np.cumsum([0, *blocks])
            stages = [
                [number for number in range(*pair) if number < counts.size] for pair in pairwise(firsts)
            ]
            stages = [stage for stage in stages if stage]
            # In a block the rows are sorted by length: mixed again, their order is as random as which block
            # they fell into.
            order = np.concatenate(
                [random.permutation(np.concatenate([items[number] for number in stage])) for stage in stages]
            )
            return _Walk(counts, stages, order, np.ones(order.size, dtype=np.int64), shuffled=True)
        shuffled = self._batches.pick is not None
        numbers = random.permutation(counts.size) if shuffled else np.arange(counts.size)
        return _Walk(
            counts,
            [[int(n)] for n in numbers],
            np.concatenate([items[n] for n in numbers]),
            counts[numbers],
            shuffled,
        )

    def _walked(self, model: Any, pairing: Pairing, order: Sequence[int] | None = None) -> Answers:
        """What a model answers to the batches in this order, or in their own; one batch after the other."""
        if isinstance(model, Spread):
            count = self._batches.count
            numbers = range(count or 0) if order is None else order
            # Data that cannot be picked from goes along with its numbers.
            parts = self._in_order(order) if count is None else [(number, None) for number in numbers]
            yield from model.answers(self, parts, pairing)
            return
        for number, batch in self._in_order(order):
            yield number, *self._answers(model, number, batch, pairing)

    def _in_order(self, order: Sequence[int] | None) -> Iterator[tuple[int, Any]]:
        """Batches with their numbers, picked where that is possible, else as they come."""
        pick = self._batches.pick
        if order is None:
            yield from enumerate(self._batches)
        elif pick is not None:
            yield from ((number, pick(number)) for number in order)
        else:
            yield from zip(order, islice(self._batches, len(order)), strict=True)

    def answers(self, model: Any, parts: Iterable[tuple[int, Any]], pairing: Pairing) -> Answers:
        """What a model answers to some batches, which are picked by number where they are None."""
        for number, batch in parts:
            found = self._batches.pick(number) if batch is None and self._batches.pick else batch
            yield number, *self._answers(model, number, found, pairing)

    def _answers(self, model: Any, number: int, batch: Any, pairing: Pairing) -> tuple[list[Any], list[Any]]:
        """What the model answers to a batch, and what would have been right; one entry per row."""
        inputs, label = self._backend.split(batch)
        if label is None:
            raise DataError(
                f"Batch {number} of the evaluation data has no label, so {self._metric.name!r} has nothing "
                "to compare with. "
                "Expected (inputs, label), or a dict with 'labels'."
            )
        labels = _rows(label)
        try:
            outputs = self._run(model, inputs)
        except OctuneError:
            raise
        except Exception as error:
            raise EvaluationError(
                f"The evaluation raised {type(error).__name__} on batch {number} of its data: {error}"
            ) from error
        found = list(self._metric.predictions_from(outputs, inputs))
        if len(labels) != len(found):
            raise DataError(
                f"Batch {number} of the evaluation data has {plural(len(labels), 'label')}, but the model "
                f"made {plural(len(found), 'prediction')}. Expected one label for each row of the batch"
                + ("; single samples must be put into batches." if len(labels) == 1 else ".")
            )
        return found, labels


def _digest(labels: list[Any]) -> str:
    return hashlib.sha256(repr(labels).encode()).hexdigest()[:16]


def _within_unit(score: Score) -> bool:
    return score.items is not None and bool(score.items.min() >= 0 and score.items.max() <= 1)


def _rows(label: Any) -> list[Any]:
    if isinstance(label, list | tuple):  # may be ragged, such as the accepted answers of each question
        return [item.item() if getattr(item, "ndim", None) == 0 else item for item in label]
    if hasattr(label, "detach"):
        label = label.detach().cpu()
    array = np.asarray(label)
    if array.ndim == 0:
        return [array.item()]
    rows: Iterable[Any] = array.tolist()
    return list(rows)
