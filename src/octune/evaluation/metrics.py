"""Metrics: from a model's outputs and the labels to a Score whose items can be compared between two models.

    metric = get_metric("f1")                           # "acc", "mcc", "topk", "rmse", "SquadF1", ...
    rows = metric.predictions({"logits": logits})       # one entry per row of a batch; collect over batches
    score = metric.score(rows, labels)                  # octune.score.Score

Values follow scikit-learn and SciPy. Where the metric is a mean over items (accuracy, top-k, MSE, MAE, SQuAD)
the score's items are the per-item scores. Elsewhere (F1, MCC, correlations, RMSE) they are the jackknife's
pseudo-values ``n * value - (n - 1) * value without item i``, whose spread determines the interval and which
pair just as well. A score that does not exist, such as the correlation with a constant, raises
EvaluationError and is never NaN.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, EvaluationError, alike, summary
from octune.evaluation import formulas
from octune.evaluation.arrays import are_logits, as_array, check_lengths
from octune.importing import resolve
from octune.score import Score

__all__ = [
    "Answer",
    "FunctionMetric",
    "Metric",
    "MetricFunction",
    "Outputs",
    "get_metric",
    "metric_names",
]

SHOWN = 16  # numbers of an output that are worth showing

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Outputs: TypeAlias = Mapping[str, Array]
MetricFunction: TypeAlias = Callable[[Array, Array], Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One item as people want to see it: what the model said, the numbers behind it, what would have been
    right.
    """

    said: Any
    output: Any
    label: Any


class Metric(ABC):
    """How a model is scored. Subclass it to bring your own: a name and :meth:`score` are enough.

    ``items`` says what a part of the data can tell about the whole, which is what lets hopeless candidates be
    stopped early: "own" when each item's score depends on nothing else, and the value is their mean;
    "jackknife" for pseudo-values; None when it is not known.
    """

    name: str
    higher_is_better: bool = True
    items: Literal["own", "jackknife"] | None = None

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        """One entry per row of the batch: the rows of "logits" if there is such an output, else of the first
        array that is not a loss.
        """
        for name in ["logits", *(name for name in outputs if name != "loss")]:
            if name in outputs and np.ndim(outputs[name]) >= 1:
                return list(np.asarray(outputs[name]))
        shapes = {name: np.shape(array) for name, array in outputs.items()}
        raise EvaluationError(
            f"{self.name} finds no predictions: expected an output with one row per item, got "
            f"{shapes or 'no outputs'}"
        )

    def predictions_from(self, outputs: Outputs, inputs: Any) -> Sequence[Any]:
        """The same for a metric that needs to know what the outputs were made from, such as which tokens are
        padding.
        """
        return self.predictions(outputs)

    def groups(self, labels: Sequence[Any]) -> Sequence[Any]:
        """Which item each row belongs to, where several rows make one (the windows of a question). By default
        each row is an item of its own.
        """
        return range(len(labels))

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        """One answer for every item, for people to read."""
        return [_answer(row, label) for row, label in zip(predictions, labels, strict=True)]

    @abstractmethod
    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        """The score of all collected predictions; items keep their order."""

    def check(self, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        """Refuse what is wrong with one batch whatever the others hold, before all of them are run. Nothing
        by default.
        """
        return


def _answer(row: Any, label: Any) -> Answer:
    array = np.asarray(row)
    if array.ndim == 0 or array.size == 1:
        number = array.reshape(()).item()
        return Answer(number, number, label)
    output = np.round(array.astype(np.float64), 4).tolist() if array.size <= SHOWN else None
    return Answer(int(array.argmax()) if array.ndim == 1 else None, output, label)


def get_metric(name: str | MetricFunction | Metric | type[Metric], **options: Any) -> Metric:
    """The metric of that name, or one made of your own function.

        get_metric("topk", k=5)
        get_metric("my_package.scoring:per_item_loss", higher_is_better=False)     # fn(predictions, labels)

    Names ignore case, "-" and "_". A function gets two arrays and returns a number, or one number per item.
    """
    if isinstance(name, Metric):
        if options:
            raise ConfigError(
                f"The metric {name.name!r} is already built: set its options {sorted(options)} where it is "
                "made."
            )
        return name
    if isinstance(name, type) and issubclass(name, Metric):
        return _construct(name, name.__name__, options)
    if callable(name):
        return _construct(FunctionMetric, "a function", {"function": name, **options})
    if not isinstance(name, str):
        raise ConfigError(
            f"A metric must be a name, a function or a Metric. Got {type(name).__name__} instead."
        )
    if ":" in name:
        return get_metric(_import(name), **options)
    known = _by_name()
    key = _plain(name)
    if key not in known:
        near = list(dict.fromkeys(known[match][0] for match in alike(key, known, 3, 0.5)))
        hint = (
            f"Did you mean {' or '.join(map(repr, near))}?"
            if near
            else f"Known: {', '.join(metric_names())}."
        )
        raise ConfigError(
            f"Unknown metric {name!r}. {hint} Your own function is named as 'package.module:function'."
        )
    return _construct(known[key][1], name, options)


def metric_names() -> list[str]:
    """The names that :func:`get_metric` knows, without their aliases."""
    return sorted({shown for shown, _ in _by_name().values()})


class FunctionMetric(Metric):
    """A metric made of ``fn(predictions, labels)``, which returns one number, or one number per item (their
    mean is the value).
    """

    def __init__(self, function: MetricFunction, *, higher_is_better: bool = True) -> None:
        self.function = function
        self.higher_is_better = higher_is_better
        self.name = str(getattr(function, "__qualname__", type(function).__name__))

    def check(self, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        count = check_lengths(self.name, predictions, labels)
        given, truth = as_array(predictions), as_array(labels)
        try:
            result = self.function(given, truth)
        except Exception as error:
            # What fails on a small batch may work on all of the data (a correlation), unless it is a mistake.
            mistakes = (TypeError, AttributeError, NameError, ImportError)
            if isinstance(error, mistakes) or are_logits(given, truth):
                raise self._raised(error, given, truth) from error
        else:
            self._values(result, count)

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        count = check_lengths(self.name, predictions, labels)
        given, truth = as_array(predictions), as_array(labels)
        try:
            result = self.function(given, truth)
        except Exception as error:
            raise self._raised(error, given, truth) from error
        values = self._values(result, count)
        if not np.isfinite(values).all():
            raise EvaluationError(
                f"{self._expected(count)} Got {np.sum(~np.isfinite(values))} of {values.size} that are NaN "
                "or infinite."
            )
        return Score.from_items(values) if values.ndim else Score(float(values), count)

    def _raised(self, error: Exception, given: Array, truth: Array) -> EvaluationError:
        hint = (
            f" It was given the outputs of the model as they are, {given.shape[1]} numbers for each item. If "
            "it wants class numbers, give it those: metric=lambda outputs, labels: my_metric(labels, "
            "outputs.argmax(1))."
            if are_logits(given, truth)
            else ""
        )
        return EvaluationError(
            f"The metric function {self.name} raised {type(error).__name__}: {summary(error)}{hint}"
        )

    def _values(self, result: Any, count: int) -> Floats:
        try:
            if result is None:  # which NumPy takes for NaN
                raise TypeError("None is not a number")
            values = np.asarray(result, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise EvaluationError(f"{self._expected(count)} Got {result!r} instead.") from error
        if values.shape not in ((), (count,)):
            raise EvaluationError(f"{self._expected(count)} Got an array of shape {values.shape} instead.")
        return values

    def _expected(self, count: int) -> str:
        return (
            f"The metric function {self.name} must return a number, or one number for each of the "
            f"{count} items."
        )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _by_name() -> dict[str, tuple[str, Callable[..., Metric]]]:
    """Plain name -> (name to show, what builds it)."""
    from octune.evaluation.agreement import Agreement  # all of them build on this module
    from octune.evaluation.basic_metrics import Classification, Regression, TopK, f1_metric
    from octune.evaluation.entity_metric import EntityF1
    from octune.evaluation.segmentation_metric import MeanIoU
    from octune.evaluation.squad_metric import ExactMatch, SquadF1

    correlation = partial(Regression, higher_is_better=True, constant=False)
    error = partial(Regression, higher_is_better=False)
    table: dict[str, tuple[Callable[..., Metric], tuple[str, ...]]] = {
        "accuracy": (lambda: Classification("accuracy", formulas.accuracy, "own"), ("acc",)),
        "f1": (f1_metric, ()),
        "acc_and_f1": (lambda: Classification("acc_and_f1", formulas.acc_and_f1), ("accuracy_and_f1",)),
        "mcc": (lambda: Classification("mcc", formulas.mcc), ("matthews_correlation", "matthews_corrcoef")),
        "topk": (TopK, ()),
        "pearson": (lambda: correlation("pearson", formulas.pearson), ("pearsonr",)),
        "spearmanr": (lambda: correlation("spearmanr", formulas.spearmanr), ("spearman",)),
        "corr": (lambda: correlation("corr", formulas.corr), ()),
        "mse": (lambda: error("mse", formulas.mse, "own"), ("mean_squared_error",)),
        "mae": (lambda: error("mae", formulas.mae, "own"), ("mean_absolute_error",)),
        "rmse": (lambda: error("rmse", formulas.rmse), ("root_mean_squared_error",)),
        "squad_f1": (SquadF1, ("squad",)),
        "exact_match": (ExactMatch, ("em",)),
        "entity_f1": (EntityF1, ("seqeval",)),
        "mean_iou": (MeanIoU, ("miou",)),
        "agreement": (Agreement, ()),
    }
    return {
        _plain(alias): (name, build) for name, (build, aliases) in table.items() for alias in (name, *aliases)
    }


def _construct(build: Callable[..., Metric], name: str, options: Mapping[str, Any]) -> Metric:
    accepted = [option for option in inspect.signature(build).parameters if option != "function"]
    unknown = sorted(set(options) - set(accepted) - {"function"})
    if unknown:
        raise ConfigError(
            f"The metric {name} has no option {unknown[0]!r}. Its options: {', '.join(accepted) or 'none'}."
        )
    return build(**options)


def _import(path: str) -> MetricFunction:
    try:
        found: MetricFunction = resolve(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"The metric {path!r} cannot be imported: {error}. Expected 'package.module:function'."
        ) from error
    if not callable(found):
        raise ConfigError(
            f"The metric {path!r} is a {type(found).__name__}. Expected a function fn(predictions, labels)."
        )
    return found
