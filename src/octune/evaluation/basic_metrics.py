"""Metrics on class numbers (accuracy, top-k, F1, MCC) and on real numbers (correlations, errors): rows are
checked, and formulas.py computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from octune.errors import ConfigError, EvaluationError
from octune.evaluation import formulas
from octune.evaluation.arrays import check_lengths, class_numbers, numbers
from octune.evaluation.metrics import Array, Floats, Metric
from octune.score import Score

__all__ = ["Classification", "Regression", "TopK", "f1_metric"]


class Classification(Metric):
    """A metric on class numbers: logits become their argmax, and hits say where it is the label."""

    def __init__(
        self,
        name: str,
        function: Callable[[Array, Array], Score],
        items: Literal["own", "jackknife"] = "jackknife",
    ) -> None:
        self.name, self._function, self.items = name, function, items

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        return self._score(*self._arrays(predictions, labels))

    def check(self, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        self._arrays(predictions, labels)

    def _arrays(self, predictions: Sequence[Any], labels: Sequence[Any]) -> tuple[Array, Array]:
        count = check_lengths(self.name, predictions, labels)
        truth = class_numbers(self.name, "labels", numbers(self.name, "labels", labels, count))
        scores = numbers(self.name, "predictions", predictions, count)
        if scores.ndim == 2:
            wrong = truth[(truth < 0) | (truth >= scores.shape[1])]
            if wrong.size:
                raise EvaluationError(
                    f"{self.name} got the label {wrong[0]}, but the model has {scores.shape[1]} classes, "
                    "numbered from 0. "
                    "Check that the labels are numbered as the model was trained."
                )
        return scores, truth

    def _score(self, scores: Array, truth: Array) -> Score:
        return self._function(
            scores.argmax(axis=1) if scores.ndim == 2 else class_numbers(self.name, "predictions", scores),
            truth,
        )


class TopK(Classification):
    """The share of items whose label is among the k highest logits; of equal logits the lower class number
    counts first, as in argmax.
    """

    def __init__(self, k: int = 1) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(
                f"The 'k' option of the metric topk must be a whole number from 1. Got {k!r} instead."
            )
        self.name, self.k, self.items = f"top{k}", k, "own"

    def _score(self, scores: Array, truth: Array) -> Score:
        if scores.ndim != 2 or scores.shape[1] < self.k:
            raise EvaluationError(
                f"{self.name} needs at least {self.k} logits per item. Got predictions of shape "
                f"{scores.shape[1:]} each."
            )
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.k]
        hits = (best == truth[:, None]).any(axis=1)
        return Score.from_items(hits, hits=hits, limits=(0.0, 1.0))


def f1_metric(average: str = "binary") -> Metric:
    if average not in ("binary", "macro", "micro", "weighted"):
        raise ConfigError(
            "The 'average' option of the metric f1 must be binary, macro, micro or weighted. Got "
            f"{average!r} instead."
        )
    return Classification("f1", partial(formulas.f1, average=average))


class Regression(Metric):
    """A metric on real numbers; ``constant`` says whether it exists for numbers that are all the same (a
    correlation does not).
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Floats, Floats], Score],
        items: Literal["own", "jackknife"] = "jackknife",
        *,
        higher_is_better: bool,
        constant: bool = True,
    ) -> None:
        self.name, self.higher_is_better, self.items = name, higher_is_better, items
        self._function, self._constant = function, constant

    def check(self, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        self._arrays(predictions, labels)

    def _arrays(self, predictions: Sequence[Any], labels: Sequence[Any]) -> tuple[Floats, Floats]:
        count = check_lengths(self.name, predictions, labels)
        predicted = numbers(self.name, "predictions", predictions, count, finite=True).astype(np.float64)
        truth = numbers(self.name, "labels", labels, count, finite=True).astype(np.float64)
        if predicted.shape != truth.shape:
            raise EvaluationError(
                f"{self.name} needs predictions and labels of one shape per item. Got {predicted.shape[1:]} "
                f"and {truth.shape[1:]} instead."
            )
        return predicted, truth

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        predicted, truth = self._arrays(predictions, labels)
        if not self._constant:
            self._check_varying("predictions", predicted)
            self._check_varying("labels", truth)
        return self._function(predicted, truth)

    def _check_varying(self, what: str, values: Floats) -> None:
        if values.ndim != 1:
            raise EvaluationError(
                f"{self.name} needs one number per item. Got {what} of shape {values.shape[1:]} each."
            )
        if (values == values[0]).all():
            raise EvaluationError(
                f"{self.name} is undefined because all {values.size} {what} are the same number, "
                f"{values[0]:g}."
            )
