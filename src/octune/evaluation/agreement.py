"""Without labels: how far a model still says what fp32 says.

    metric = Agreement()                    # or get_metric("agreement", kind="cosine")
    rows = metric.predictions(outputs)      # what one model says, one entry per item
    metric.score(rows, rows_of_fp32)        # 1.0 when both say the same

An item scores 1 when both models choose the same class (``top1``), the cosine between the two vectors
(``cosine``), or for single numbers one less the distance, in standard deviations of what fp32 says
(``value``). Which of them fits is told by the names of the outputs, then by their shapes; a name given as
``kind`` decides it. All outputs must agree: the worst one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, EvaluationError
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.metrics import Metric, Outputs, check_lengths
from octune.score import Score

__all__ = ["KINDS", "Agreement", "AgreementEvaluator", "kind_of"]

Kind = Literal["top1", "cosine", "value"]
KINDS: tuple[Kind, ...] = ("top1", "cosine", "value")
Array = npt.NDArray[Any]

CLASS_NAMES = ("logit", "prob", "class", "softmax", "score")
VECTOR_NAMES = ("embed", "hidden", "pool", "feature", "state", "vector")
# Embeddings come in widths of 64, 384, 768, ...; classes in 2, 10, 100, 1000, 30522.
VECTOR_STEP = 64


def kind_of(name: str, array: Array) -> Kind:
    """What an output is, told by its name, else by its shape."""
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
    """The metric of a run without labels: its "labels" are what fp32 says."""

    name = "agreement"
    items = "own"

    def __init__(self, kind: str | None = None) -> None:
        wanted = next((known for known in KINDS if known == kind), None)
        if wanted is None and kind is not None:
            raise ConfigError(
                f"The 'kind' option of the metric agreement must be one of {', '.join(KINDS)}. Got {kind!r} "
                "instead."
            )
        self._wanted = wanted
        self._kinds: dict[str, Kind] = {}

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        """One tuple per item with what every output says: a class (or one per position), a vector, or a
        number.
        """
        columns = []
        rows = {
            len(array)
            for array in outputs.values()
            if np.ndim(array) >= 1 and np.issubdtype(array.dtype, np.floating)
        }
        for name, array in outputs.items():
            if (
                name == "loss"
                or np.ndim(array) == 0
                or not np.issubdtype(array.dtype, np.floating)
                or len(array) != max(rows)
            ):
                continue
            # The first batch decides: a width that changes from batch to batch (token positions) must not
            # change what is compared.
            kind = self._kinds.setdefault(name, self._wanted or kind_of(name, array))
            columns.append([_said(kind, row) for row in array])
        if not columns:
            shapes = {name: np.shape(array) for name, array in outputs.items()}
            raise EvaluationError(
                "agreement finds no outputs to compare: expected float arrays with one row per item, got "
                f"{shapes}."
            )
        return list(zip(*columns, strict=True))

    @property
    def described(self) -> str:
        """What is compared, in words; known once a model has run."""
        words = {"top1": "same class as fp32", "cosine": "cosine with fp32", "value": "distance to fp32"}
        return ", ".join(f"{name}: {words[kind]}" for name, kind in self._kinds.items())

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        kinds = list(self._kinds.values())
        columns = []
        for index, kind in enumerate(kinds):
            got, wanted = [row[index] for row in predictions], [row[index] for row in labels]
            if not all(np.isfinite(np.asarray(value, dtype=np.float64)).all() for value in got):
                raise EvaluationError("agreement is undefined because the model puts out NaN or infinity.")
            columns.append(_compared(kind, got, wanted))
        items = np.min(columns, axis=0)
        classes = all(kind == "top1" for kind in kinds)
        return Score.from_items(
            items, hits=items if classes else None, limits=(0.0, 1.0) if classes else None
        )


class AgreementEvaluator(MetricEvaluator):
    """Scores a model by what fp32 says of the same inputs; labels that the data may hold are not looked
    at.
    """

    _said: dict[int, list[Any]] | None = None
    _fp32: Any = None

    def _answers(self, model: Any, number: int, batch: Any) -> tuple[list[Any], list[Any]]:
        inputs, _ = self._backend.split(batch)
        if self._said is None:
            self._said, self._fp32 = {}, self._backend.fp32_model()
        found = list(self._metric.predictions(self._backend.run(model, inputs)))
        if isinstance(self._metric, Agreement):
            self.notes = (f"what is compared: {self._metric.described}",)
        wanted = self._said.get(number)
        if wanted is None:
            wanted = list(self._metric.predictions(self._backend.run(self._fp32, inputs)))
        # Only data that can be picked by number is the same under that number each time; a loader may
        # shuffle.
        if self._batches.pick is not None:
            self._said[number] = wanted
        return found, wanted


def _said(kind: Kind, row: Array) -> Any:
    """What is kept of one row: little, since it is kept for every item."""
    if kind == "top1":
        return np.argmax(row, axis=-1)
    if kind == "cosine":
        # Hidden states of many tokens, as their mean: that is how they are used, and it does not grow with
        # the text.
        return np.asarray(row, dtype=np.float32).reshape(-1, row.shape[-1]).mean(axis=0)
    return np.asarray(row, dtype=np.float32).reshape(-1).mean()


def _compared(kind: Kind, got: Sequence[Any], wanted: Sequence[Any]) -> npt.NDArray[np.float64]:
    if kind == "top1":
        return np.asarray([float(np.mean(np.equal(a, b))) for a, b in zip(got, wanted, strict=True)])
    a, b = np.asarray(got, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    if kind == "cosine":
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        same = np.all(a == b, axis=1)
        return np.where(same, 1.0, np.einsum("ij,ij->i", a, b) / np.maximum(lengths, 1e-30))
    spread = float(b.std()) or float(np.abs(b).mean()) or 1.0
    return np.asarray(1.0 - np.abs(a - b) / spread)
