"""Runs as users start them: tune() on the digits, and scoring code that does what it should not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import octune
from octune import Result
from tests.digits import Digits, config


def tune(
    data: Digits,
    evaluate: Callable[[Any], Any] | None,
    model: Any = None,
    calibration: Any = None,
    **options: Any,
) -> Result:
    tuning = {
        key: options.pop(key)
        for key in ("trial_timeout", "max_trials", "timeout", "strategy", "random_seed")
        if key in options
    }
    calibration = data.batches() if calibration is None else calibration
    return octune.tune(
        data.model() if model is None else model,
        calibration=calibration,
        evaluate=evaluate,
        config=config(**tuning),
        **options,
    )


def only_on_trials(data: Digits, then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Scores the baseline as it should, and then something else happens."""
    calls = itertools.count()

    def evaluate(model: Any) -> Any:
        return data.accuracy(model) if next(calls) == 0 else then(model)

    return evaluate


def raise_(error: BaseException) -> Any:
    raise error


def guilty(name: str) -> Callable[[Any], float]:
    """As if int8 at this op did all the harm."""
    return lambda model: 0.5 if "Int8" in type(model.get_submodule(name)).__name__ else 1.0
