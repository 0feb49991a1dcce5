"""F1 of entities, for token classification: the value of seqeval in its default mode.

    entities(["B-PER", "I-PER", "O", "B-LOC"])              # {("PER", 0, 2), ("LOC", 3, 4)}
    EntityF1(["O", "B-PER", "I-PER"]).score([[1, 2, 0]], [["B-PER", "I-PER", "O"]]).value   # 1.0

A tag is a prefix and a type. IOB1, IOB2, BIOES and BILOU are read alike: an entity goes on as long as the
type stays the same and nothing begins or ends. An item is a sentence, with the pseudo-value of the jackknife.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octune.errors import ConfigError, EvaluationError
from octune.evaluation.arrays import check_lengths
from octune.evaluation.formulas import jackknifed
from octune.evaluation.metrics import Answer, Metric, Outputs
from octune.score import Score

__all__ = ["OUTSIDE", "EntityF1", "entities"]

OUTSIDE = "O"
LAST_AND_ALONE = {"L": "E", "U": "S"}  # BILOU's names for what BIOES calls E and S
PREFIXES = ("B", "I", "E", "S")
Entity = tuple[str, int, int]


def entities(tags: Sequence[str]) -> set[Entity]:
    """The entities of a sentence: type, first token, and the token behind the last one."""
    found: set[Entity] = set()
    start, kind, before = -1, "", OUTSIDE
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, own = _parts(tag)
        begins = prefix in ("B", "S") or before in ("E", "S") or own != kind
        if start >= 0 and (prefix == OUTSIDE or begins):
            found.add((kind, start, place))
            start = -1
        if start < 0 and prefix != OUTSIDE:
            start, kind = place, own
        before = prefix
    return found


def _parts(tag: str) -> tuple[str, str]:
    """Prefix and type; a tag without a prefix is a type alone."""
    prefix, dash, kind = tag.partition("-")
    prefix = LAST_AND_ALONE.get(prefix, prefix)
    return (prefix, kind) if tag == OUTSIDE or (dash and prefix in PREFIXES) else ("I", tag)


class EntityF1(Metric):
    """Micro-averaged F1 over all entities of all sentences. ``labels`` are the tags of the model's classes,
    in their order.

    The labels of a row are tags by token, or class numbers; tokens with an empty tag or -100 (special tokens,
    and all but the first of a word) do not count.
    """

    name = "entity_f1"
    items = "jackknife"

    def __init__(self, labels: Sequence[str] | None = None) -> None:
        named = labels is None or (
            not isinstance(labels, str) and len(labels) and all(isinstance(label, str) for label in labels)
        )
        if not named:
            raise ConfigError(
                "The 'labels' option of the metric entity_f1 must be the tags of the model's classes in "
                f"their order, such as [O, B-PER, I-PER]. Got {labels!r} instead."
            )
        self._tags = tuple(labels or ())

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        """The class of every token."""
        if not self._tags:
            raise EvaluationError(
                "entity_f1 needs the option 'labels': the tags of the model's classes in order, such as "
                "[O, B-PER, I-PER]."
            )
        rows = super().predictions(outputs)
        if rows and np.ndim(rows[0]) != 2:
            raise EvaluationError(
                "entity_f1 needs logits for every token: an output of shape (rows, tokens, classes). Got "
                f"{np.shape(rows)} instead."
            )
        if rows and np.shape(rows[0])[1] != len(self._tags):
            raise EvaluationError(
                f"entity_f1 has {len(self._tags)} tags, and the model {np.shape(rows[0])[1]} classes."
            )
        if rows and any(np.isnan(row).any() for row in rows):
            raise EvaluationError("entity_f1 is undefined because the model outputs NaN.")
        return [np.argmax(row, axis=-1).astype(np.int16) for row in rows]

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        pairs = [self._said(row, label) for row, label in zip(predictions, labels, strict=True)]
        return [Answer(" ".join(said), None, " ".join(right)) for said, right in pairs]

    def check(self, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        for row, label in zip(predictions, labels, strict=True):
            self._said(row, label)

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        counts = np.zeros((len(labels), 3))  # entities that are right, said, and true
        for number, (row, label) in enumerate(zip(predictions, labels, strict=True)):
            said, true = map(entities, self._said(row, label))
            counts[number] = len(said & true), len(said), len(true)
        total = counts.sum(axis=0)
        if not total[2]:
            raise EvaluationError("entity_f1 is undefined because the labels hold no entity.")
        left = total - counts
        with np.errstate(divide="ignore", invalid="ignore"):
            without = 2 * left[:, 0] / (left[:, 1] + left[:, 2])
        right = (counts[:, 0] == counts[:, 1]) & (counts[:, 0] == counts[:, 2])
        return jackknifed(float(2 * total[0] / (total[1] + total[2])), without, hits=right)

    def _said(self, row: Any, label: Any) -> tuple[list[str], list[str]]:
        """The tags of the tokens that count: those of the model, and the true ones."""
        if not isinstance(label, Sequence) or len(label) > len(row):
            raise EvaluationError(
                "entity_f1 needs one tag for every token of a row, empty or -100 where it does not count. "
                f"Got {label!r:.80} for {len(row)} tokens."
            )
        counting = [(place, tag) for place, tag in enumerate(label) if tag not in ("", None, -100)]
        return [self._tags[row[place]] for place, _ in counting], [self._tag(tag) for _, tag in counting]

    def _tag(self, tag: Any) -> str:
        if isinstance(tag, str):
            return tag
        if not 0 <= int(tag) < len(self._tags):
            raise EvaluationError(
                f"entity_f1 got the label {tag}, and has {len(self._tags)} tags, numbered from 0."
            )
        return self._tags[int(tag)]
