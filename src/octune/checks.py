"""What is asked for is checked before work is spent on it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from octune.backends import Backend
from octune.config import Config, parse_config
from octune.criterion import Absolute, Criterion, Relative
from octune.data import Batches
from octune.errors import ConfigError, DataError, OctuneError, summary
from octune.evaluation.base import Evaluator

__all__ = ["check_scoring", "criterion_of", "rehearse", "with_criterion"]

SIZES = {"relative", "absolute"}


def with_criterion(config: Config, asked: Any) -> Config:
    """The configuration with a criterion that was given in another form than as a :class:`Criterion`: 0.01,
    "1%", {"absolute": 2}. What it does not say stays as the configuration has it.
    """
    if asked is None or isinstance(asked, Criterion):
        return config
    if isinstance(asked, bool) or not isinstance(asked, int | float | str | Mapping):
        raise ConfigError(
            "criterion must be a number such as 0.01, text such as '1%', a dict such as {'absolute': 2}, or "
            f"octune.Relative or octune.Absolute. Got {asked!r:.80} instead."
        )
    named = asked if isinstance(asked, Mapping) else {"relative": asked}
    before = config.criterion.model_dump(exclude_none=True, exclude=SIZES if SIZES & set(named) else None)
    section = parse_config({"criterion": {**before, **named}}, source="arguments").criterion
    return config.model_copy(update={"criterion": section})


def check_scoring(evaluate: Any, metric: Any) -> None:
    """One way to score, and one that can be called."""
    if evaluate is None:
        return
    if not callable(evaluate):
        raise ConfigError(
            "evaluate must be a function that takes the model and returns its score. Got "
            f"{type(evaluate).__name__} instead."
        )
    try:
        inspect.signature(evaluate).bind(None)
    except TypeError:
        raise ConfigError(
            "evaluate must be a function of one argument: it is called as evaluate(model). Got "
            f"{getattr(evaluate, '__name__', 'one')}{inspect.signature(evaluate)}. Bind what else it takes, "
            "with functools.partial for example."
        ) from None
    except ValueError:  # a builtin that does not say what it takes
        pass
    if metric is not None:
        raise ConfigError(
            f"evaluate= scores the model, and metric={metric!r:.60} would never be used. Give one of them: "
            "evaluate=, or metric= with evaluation=."
        )


def criterion_of(asked: Any, config: Config, evaluator: Evaluator) -> Criterion:
    """The criterion as it was asked for, or as the configuration has it; it must see better scores where the
    metric does.
    """
    criterion = asked if isinstance(asked, Criterion) else _configured(config, evaluator)
    if criterion.higher_is_better and not evaluator.higher_is_better:
        kind = type(criterion).__name__
        raise ConfigError(
            f"The criterion ({criterion}) takes higher scores for better ones, and {evaluator.name!r} is "
            f"better the lower it is. Give criterion={ {kind.lower(): criterion.tolerance} }, which takes "
            f"the direction of the metric, or {kind}({criterion.tolerance:g}, higher_is_better=False)."
        )
    return criterion


def _configured(config: Config, evaluator: Evaluator) -> Criterion:
    chosen = config.criterion
    higher = evaluator.higher_is_better if chosen.higher_is_better is None else chosen.higher_is_better
    if chosen.absolute is not None:
        return Absolute(chosen.absolute, higher, chosen.confidence)
    return Relative(chosen.relative if chosen.relative is not None else 0.01, higher, chosen.confidence)


def rehearse(
    backend: Backend, evaluator: Evaluator, calibration: Batches | None, evaluation: Batches | None
) -> tuple[Any, Any]:
    """Run one batch of each, and score one of them: what cannot work is found before all of the data is run.
    Returns the inputs of both batches, as the backend takes them; None where there is no data.
    """
    model = backend.fp32_model()
    calibrated = None if calibration is None else _tried(backend, model, calibration, calibration.first())[0]
    if evaluation is None:
        evaluator.rehearse(model, None)
        return calibrated, None
    batch = evaluation.first()
    evaluated, whole = _tried(backend, model, evaluation, batch)
    if whole:
        try:
            evaluator.rehearse(model, batch)
        except DataError as error:
            raise DataError(f"{error} {evaluation.hint}".rstrip()) from error
    return calibrated, evaluated


def _tried(backend: Backend, model: Any, batches: Batches, batch: Any) -> tuple[Any, bool]:
    """The inputs of a batch that the model was run on, and whether they are all of it: a file of records that
    a graph reads itself is not.
    """
    try:
        whole = backend.split(batch)[0]
    except DataError as error:
        raise DataError(f"{error} {batches.hint}".rstrip()) from error
    inputs = next(backend.parts(whole), None)
    if inputs is None:
        raise DataError(
            f"The first item of the {batches.role} data holds no batch at all: the file that it names is "
            "empty."
        )
    if backend.batch_size(inputs) == 0:
        raise DataError(
            f"The first batch of the {batches.role} data is empty: it holds {_described(inputs)}. Expected "
            "at least one sample in every batch."
        )
    try:
        backend.run(model, inputs)
    except OctuneError:
        raise
    except Exception as error:
        raise DataError(
            f"The model cannot be run on the {batches.role} data: {type(error).__name__}: {summary(error)}. "
            f"Its first batch holds {_described(inputs)}. {batches.hint or _hint(inputs)}"
        ) from error
    return inputs, inputs is whole


def _described(inputs: Any) -> str:
    """The arrays of a batch, by type and shape."""
    named = {**{str(number): value for number, value in enumerate(getattr(inputs, "args", ()))}}
    named |= getattr(inputs, "kwargs", {})
    shown = [
        f"{name}: {str(value.dtype).rpartition('.')[2]} {tuple(value.shape)}"
        if hasattr(value, "dtype") and hasattr(value, "shape")
        else f"{name}: {type(value).__name__}"
        for name, value in named.items()
    ]
    return ", ".join(shown) or f"a {type(inputs).__name__}"


def _hint(inputs: Any) -> str:
    if "float64" in _described(inputs):
        return (
            "float64 is NumPy's default, and most models take float32: convert the data, with .float() or "
            ".astype('float32')."
        )
    if "uint8" in _described(inputs):
        return "Images as bytes must be converted as they were for training: to float32, and scaled."
    return "Expected batches as the model takes them, with a batch dimension in front."
