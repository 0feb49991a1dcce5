"""Who scores a model: the user's function, or a metric over evaluation data.

evaluator = FunctionEvaluator(lambda model: accuracy(model))
evaluator = MetricEvaluator(backend, batches, get_metric("accuracy"))
evaluator(model)                 # -> Score
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from octune.backends.base import Backend
from octune.data import Batches
from octune.errors import DataError
from octune.evaluation.guard import as_score, call_limited
from octune.evaluation.metrics import Metric
from octune.score import Score

__all__ = ["Evaluator", "FunctionEvaluator", "MetricEvaluator"]


class Evaluator(ABC):
    """Scores a model; ``trial_timeout`` bounds one call in seconds (0: no limit)."""

    higher_is_better: bool = True
    name: str = "score"
    order: str | None = None  # a digest of the items' order, where it is known: items pair only with items in the same order

    def __init__(self, trial_timeout: float = 0) -> None:
        self._limit = trial_timeout

    def __call__(self, model: Any) -> Score:
        return as_score(call_limited(lambda: self._evaluate(model), self._limit))

    @abstractmethod
    def _evaluate(self, model: Any) -> Any: ...


class FunctionEvaluator(Evaluator):
    """The user's own ``evaluate(model)``."""

    def __init__(self, function: Callable[[Any], Any], trial_timeout: float = 0) -> None:
        super().__init__(trial_timeout)
        self._function = function
        self.name = getattr(function, "__name__", "evaluate")

    def _evaluate(self, model: Any) -> Any:
        return self._function(model)


class MetricEvaluator(Evaluator):
    """A metric over batches of ``(inputs, label)``; over the first ``samples`` items, in whole batches, if that is given."""

    def __init__(self, backend: Backend, batches: Batches, metric: Metric, trial_timeout: float = 0, samples: int | None = None) -> None:
        super().__init__(trial_timeout)
        self._backend, self._batches, self._metric, self._samples = backend, batches, metric, samples
        self.higher_is_better, self.name = metric.higher_is_better, metric.name

    def _evaluate(self, model: Any) -> Score:
        predictions: list[Any] = []
        labels: list[Any] = []
        for index, batch in enumerate(self._batches):
            inputs, label = self._backend.split(batch)
            if label is None:
                raise DataError(
                    f"Batch {index} of the evaluation data has no label, so {self._metric.name!r} has nothing to compare with. "
                    "Expected (inputs, label), or a dict with 'labels'."
                )
            rows = _rows(label)
            found = list(self._metric.predictions(self._backend.run(model, inputs)))
            if len(rows) != len(found):
                raise DataError(
                    f"Batch {index} of the evaluation data has {len(rows)} labels, but the model gave {len(found)} predictions."
                )
            predictions.extend(found)
            labels.extend(rows)
            # Whole batches: what belongs together (the windows of one question) shares a batch.
            if self._samples is not None and len(labels) >= self._samples:
                break
        score = self._metric.score(predictions, labels)
        order = hashlib.sha256(repr(labels).encode()).hexdigest()
        if self.order is None:
            self.order = order
        elif order != self.order:
            # The data came in another order (a shuffling loader): items cannot be paired with the baseline's.
            score = replace(score, items=None, hits=None)
        return score


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
