"""What is asked for is checked before work is spent on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octune.config import Config, parse_config
from octune.criterion import Absolute, Criterion, Relative
from octune.errors import ConfigError
from octune.evaluation.evaluator import Evaluator

__all__ = ["criterion_of", "with_criterion"]

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
    section = parse_config({"criterion": {**before, **named}}, source="tune()").criterion
    return config.model_copy(update={"criterion": section})


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
