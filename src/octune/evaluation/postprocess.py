"""Steps between a model's outputs and its metric, as a configuration names them.

    # the labels of the files count from 1, the model's from 0
    metric = postprocessed(get_metric("topk"), {"LabelShift": 1})
    metric = postprocessed(metric, {"mine.steps:Threshold": {"at": 0.5}})

A step takes ``(predictions, labels)`` and returns both, as LPOT's transforms do. It sees all rows of the data
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from octune.errors import ConfigError, EvaluationError
from octune.evaluation.metrics import Answer, Metric, Outputs
from octune.importing import resolve
from octune.score import Score

__all__ = ["LabelShift", "Postprocessed", "Step", "postprocessed"]

Step: TypeAlias = Callable[[tuple[Any, Any]], tuple[Any, Any]]


class LabelShift:
    """Subtracts a number from every label, for models that leave out the data's class 0."""

    def __init__(self, label_shift: int = 0) -> None:
        if isinstance(label_shift, bool) or not isinstance(label_shift, int):
            raise ConfigError(f"LabelShift needs a whole number. Got {label_shift!r} instead.")
        self.label_shift = label_shift

    def __call__(self, sample: tuple[Any, Any]) -> tuple[Any, Any]:
        predictions, labels = sample
        return predictions, (np.asarray(labels) - self.label_shift).tolist()


class Postprocessed(Metric):
    """A metric over what steps make of predictions and labels."""

    def __init__(self, metric: Metric, steps: Sequence[Step]) -> None:
        self._metric, self._steps = metric, tuple(steps)
        self.name, self.higher_is_better = metric.name, metric.higher_is_better
        # A user's own step may mix rows, or drop some; a shift of labels cannot.
        self.items = metric.items if all(isinstance(step, LabelShift) for step in steps) else None

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        return self._metric.predictions(outputs)

    def predictions_from(self, outputs: Outputs, inputs: Any) -> Sequence[Any]:
        return self._metric.predictions_from(outputs, inputs)

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        return self._metric.answers(predictions, labels)

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        sample: tuple[Any, Any] = (predictions, labels)
        for step in self._steps:
            try:
                sample = step(sample)
                predictions, labels = sample
            except (TypeError, ValueError) as error:
                name = getattr(step, "__name__", type(step).__name__)
                raise EvaluationError(
                    f"The step {name} of postprocess must return (predictions, labels): {error}"
                ) from error
        return self._metric.score(predictions, labels)


def postprocessed(metric: Metric, steps: Mapping[str, Any]) -> Metric:
    """The metric after the steps that a configuration names, in their order; the metric itself if there are
    none.
    """
    return (
        Postprocessed(metric, [_step(name, options) for name, options in steps.items()]) if steps else metric
    )


def _step(name: str, options: Any) -> Step:
    if name == "SquadV1":
        raise ConfigError(
            "postprocess: SquadV1 is part of the task. Write evaluation.data: {task: squad, folder: ...} and "
            "leave SquadV1 out."
        )
    if name == "LabelShift":
        build: Callable[..., Step] = LabelShift
    elif ":" in name:
        try:
            build = resolve(name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"postprocess names {name!r}, which cannot be imported: {error}. Expected "
                "package.module:Class."
            ) from error
    else:
        raise ConfigError(
            f"postprocess has the unknown step {name!r}. Expected LabelShift, or a class of your own: "
            "package.module:Class."
        )
    try:
        return (
            build(**options)
            if isinstance(options, Mapping)
            else build(options)
            if options is not None
            else build()
        )
    except TypeError as error:
        raise ConfigError(
            f"The step {name} of postprocess cannot be made of {options!r}: {error}."
        ) from error
