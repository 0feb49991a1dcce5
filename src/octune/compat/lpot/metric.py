"""A metric class of LPOT's kind (``reset``, ``update``, ``result``) as one of Octune's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octune.errors import ConfigError
from octune.evaluation.metrics import Metric, Outputs
from octune.score import Score

__all__ = ["UpdateMetric"]


class UpdateMetric(Metric):
    """Makes a new instance of the user's class for every model, updates it once with everything, and takes
    its result.

    ``update`` gets the model's output as one array, or a list of arrays if there are several, and the labels.
    """

    def __init__(self, name: str, build: Callable[..., Any], options: dict[str, Any]) -> None:
        missing = [method for method in ("update", "result") if not callable(getattr(build, method, None))]
        if missing:
            raise ConfigError(
                f"The metric {name!r} has no {' and no '.join(missing)}. Expected a class with update(preds, "
                "labels) and result()."
            )
        self.name, self._build, self._options = name, build, options

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        arrays = [np.asarray(array) for name, array in outputs.items() if name != "loss" and np.ndim(array)]
        return list(arrays[0]) if len(arrays) == 1 else list(zip(*arrays, strict=True))

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        metric = self._build(**self._options)
        several = bool(predictions) and isinstance(predictions[0], tuple)
        columns = (
            [np.stack(column) for column in zip(*predictions, strict=True)]
            if several
            else np.asarray(predictions)
        )
        metric.update(columns, np.asarray(labels))
        return Score(float(metric.result()), len(labels))
