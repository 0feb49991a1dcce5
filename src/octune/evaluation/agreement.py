"""Without labels: how far a model still answers what fp32 answers.

    metric = Agreement()                    # or get_metric("agreement", kind="cosine")
    rows = metric.predictions(outputs)      # what one model answers, one entry per item
    metric.score(rows, rows_of_fp32)        # 1.0 when both answer the same

How two answers are compared depends on their kind. ``top1``: 1 when both models choose the same class, else
0. ``cosine``: the cosine between the two vectors. ``value``: 1 minus the distance between the two numbers, in
standard deviations of fp32's. The kind follows from the name of the output, else from its shape; the option
``kind`` overrides both. All outputs must agree: the worst one counts. Recurrent state and caches are no
answers, and are left out (see ``feedback``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, EvaluationError
from octune.evaluation.arrays import check_lengths
from octune.evaluation.base import Runner
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.feedback import fed_back
from octune.evaluation.metrics import Answer, Metric, Outputs
from octune.evaluation.pairing import Pairing
from octune.score import Score

__all__ = ["KINDS", "Agreement", "AgreementEvaluator", "kind_of"]

Kind = Literal["top1", "cosine", "value"]
KINDS: tuple[Kind, ...] = ("top1", "cosine", "value")
Array = npt.NDArray[Any]

CLASS_NAMES = ("logit", "prob", "class", "softmax", "score")
VECTOR_NAMES = ("embed", "hidden", "pool", "feature", "state", "vector")
# Embeddings come in widths of 64, 384, 768, ...; classes in 2, 10, 100, 1000, 30522.
VECTOR_STEP = 64
LEFT_OUT = "left out"  # the kind of an output that is not compared
WORDS: dict[str, str] = {
    "top1": "same class as fp32",
    "cosine": "cosine with fp32",
    "value": "distance to fp32",
}


def kind_of(name: str, array: Array) -> Kind:
    """How an output is compared, by its name, else by its shape."""
    width = array.shape[-1] if array.ndim >= 2 else 1
    if width == 1:
        return "value"
    plain = name.lower()
    if any(word in plain for word in CLASS_NAMES):
        return "top1"
    if any(word in plain for word in VECTOR_NAMES):
        return "cosine"
    return "cosine" if width % VECTOR_STEP == 0 else "top1"


class Agreement(Metric):
    """The metric of a run without labels: its "labels" are fp32's answers."""

    name = "agreement"
    items = "own"

    def __init__(self, kind: str | None = None) -> None:
        wanted = next((known for known in KINDS if known == kind), None)
        if wanted is None and kind is not None:
            raise ConfigError(
                f"The 'kind' option of the metric agreement must be one of {', '.join(KINDS)}. Got {kind!r} "
                "instead."
            )
        self._kind = wanted

    def kinds(self, outputs: Outputs, inputs: Any = None) -> Mapping[str, str]:
        """How each output that can be compared is compared, by its name; ``inputs`` are what they were made
        from, where that is known.
        """
        floats = {
            name: array
            for name, array in outputs.items()
            if name != "loss" and np.ndim(array) >= 1 and np.issubdtype(array.dtype, np.floating)
        }
        given = _named(inputs)
        shapes = {name: np.shape(array) for name, array in floats.items()}
        states = fed_back(shapes, {name: np.shape(array) for name, array in given.items()})
        lengths = [len(array) for name, array in floats.items() if name not in states]
        rows = next((len(array) for array in given.values() if np.ndim(array)), 0)
        rows = rows if rows in lengths else max(lengths, default=0)
        found = {
            name: LEFT_OUT if name in states else self._kind or kind_of(name, array)
            for name, array in floats.items()
            if name in states or len(array) == rows
        }
        if not found:
            shapes = {name: np.shape(array) for name, array in outputs.items()}
            raise EvaluationError(
                "agreement finds no outputs to compare: expected float arrays with one row per item, got "
                f"{shapes}."
            )
        return found

    def predictions(self, outputs: Outputs, kinds: Mapping[str, str] | None = None) -> Sequence[Any]:
        """One tuple per item, with a kind and an answer for every output: a class (or one per position), a
        vector, or a number. ``kinds`` are those of another batch, where they are known.
        """
        columns = [
            [(kind, _answer(kind, row)) for row in outputs[name]]
            for name, kind in (kinds or self.kinds(outputs)).items()
            if kind != LEFT_OUT
        ]
        return list(zip(*columns, strict=True))

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        return [
            Answer(_plain(said), None, _plain(right)) for said, right in zip(predictions, labels, strict=True)
        ]

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        kinds = [kind for kind, _ in labels[0]]
        columns = []
        for index, kind in enumerate(kinds):
            got, wanted = [row[index][1] for row in predictions], [row[index][1] for row in labels]
            if not all(np.isfinite(np.asarray(value, dtype=np.float64)).all() for value in got):
                raise EvaluationError("agreement is undefined because the model outputs NaN or infinity.")
            columns.append(_compared(kind, got, wanted))
        items = np.min(columns, axis=0)
        classes = all(kind == "top1" for kind in kinds)
        return Score.from_items(
            items, hits=items if classes else None, limits=(0.0, 1.0) if classes else None
        )


class AgreementEvaluator(MetricEvaluator):
    """Scores a model by what fp32 answers to the same inputs; labels that the data may hold are ignored."""

    _metric: Agreement

    @cached_property
    def _fp32(self) -> Any:
        return self._backend.fp32_model()

    @cached_property
    def _fp32_answers(self) -> dict[Any, list[Any]]:
        """By number of the batch, and how outputs are compared."""
        return {}

    def bound(self, backend: Runner | None) -> Self:
        other = super().bound(backend)
        for known in ("_fp32", "_fp32_answers"):  # of the other backend's model
            vars(other).pop(known, None)
        return other

    def notes(self, pairing: Pairing) -> Sequence[str]:
        left = [name for name, kind in pairing.kinds.items() if kind == LEFT_OUT]
        compared = ", ".join(
            f"{name}: {WORDS[kind]}" for name, kind in pairing.kinds.items() if kind != LEFT_OUT
        )
        why = "state or a cache that is fed back at the next call"
        return (
            f"what is compared: {compared}",
            *([f"not compared: {', '.join(left)} ({why}; evaluation.outputs names others)"] if left else []),
        )

    def _answer_to(self, model: Any, inputs: Any, labels: list[Any], pairing: Pairing) -> Answer:
        found = self._metric.predictions(self._run(model, inputs), pairing.kinds)
        return replace(self._metric.answers(found, found)[0], label=None)  # nobody knows what is right

    def _rehearse(self, model: Any, batch: Any) -> None:
        inputs, _ = self._backend.split(batch)
        self._metric.kinds(self._run(model, inputs), inputs)

    def _evaluate(self, model: Any, pairing: Pairing) -> tuple[Score, Pairing]:
        if not pairing.kinds:
            # One batch decides for all: a width that changes from batch to batch (token positions) must not
            # change how outputs are compared.
            inputs, _ = self._backend.split(self._batches.first())
            pairing = replace(pairing, kinds=self._metric.kinds(self._run(self._fp32, inputs), inputs))
        return super()._evaluate(model, pairing)

    def _answers(self, model: Any, number: int, batch: Any, pairing: Pairing) -> tuple[list[Any], list[Any]]:
        inputs, _ = self._backend.split(batch)
        found = list(self._metric.predictions(self._run(model, inputs), pairing.kinds))
        key = number, *pairing.kinds.items()
        wanted = self._fp32_answers.get(key)
        if wanted is None:
            wanted = (
                found
                if model is self._fp32
                else list(self._metric.predictions(self._run(self._fp32, inputs), pairing.kinds))
            )
        # Only data that can be picked by number is the same under that number each time; a loader may
        # shuffle.
        if self._batches.pick is not None:
            self._fp32_answers[key] = wanted
        return found, wanted


def _named(inputs: Any) -> Mapping[str, Any]:
    """Arrays by name, of a call or of a dict."""
    named = inputs if isinstance(inputs, Mapping) else getattr(inputs, "kwargs", {})
    unnamed = dict(enumerate(getattr(inputs, "args", ())))
    found = {str(name): value for name, value in {**unnamed, **named}.items()}
    return {name: value for name, value in found.items() if hasattr(value, "shape")}


def _plain(row: Sequence[tuple[str, Any]]) -> Any:
    """The classes that were chosen, or one of them alone; vectors are of no use to people."""
    shown = [np.asarray(answer).tolist() for kind, answer in row if kind != "cosine"]
    return shown[0] if len(shown) == 1 else shown


def _answer(kind: str, row: Array) -> Any:
    """What is kept of one row: little, since it is kept for every item."""
    if kind == "top1":
        return np.argmax(row, axis=-1)
    if kind == "cosine":
        # Hidden states of many tokens, as their mean: that is how they are used, and it does not grow with
        # the text.
        return np.asarray(row, dtype=np.float32).reshape(-1, row.shape[-1]).mean(axis=0)
    return np.asarray(row, dtype=np.float32).reshape(-1).mean()


def _compared(kind: str, got: Sequence[Any], wanted: Sequence[Any]) -> npt.NDArray[np.float64]:
    if kind == "top1":
        return np.asarray([float(np.mean(np.equal(a, b))) for a, b in zip(got, wanted, strict=True)])
    a, b = np.asarray(got, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    if kind == "cosine":
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        same = np.all(a == b, axis=1)
        return np.where(same, 1.0, np.einsum("ij,ij->i", a, b) / np.maximum(lengths, 1e-30))
    spread = float(b.std()) or float(np.abs(b).mean()) or 1.0
    return np.asarray(1.0 - np.abs(a - b) / spread)
