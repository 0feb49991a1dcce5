"""Same seed, same machine, twice: the same plans, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import octune
from tests.digits import digits


def hard() -> nn.Sequential:
    """Outlier channels before both later linears."""
    model = digits().model()
    with torch.no_grad():
        for makes, reads in ((model[0], model[2]), (model[2], model[4])):
            makes.weight[:2] *= 400
            makes.bias[:2] *= 400
            reads.weight[:, :2] /= 400
    return model


def run(strategy: str, **tuning: Any) -> octune.Result:
    return octune.tune(
        hard(),
        calibration=digits().batches(),
        evaluation=digits().labelled(),
        metric="accuracy",
        config={
            "performance": {"compile": "never", "iterations": 1, "warmup": 0},
            "tuning": {"strategy": strategy, "random_seed": 7, "max_trials": 6, **tuning},
        },
    )


@pytest.mark.parametrize("strategy", ["auto", "mse", "random", "tpe"])
def test_two_runs_try_the_same_plans(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTUNE_CACHE", str(tmp_path))
    monkeypatch.delenv("OCTUNE_COST_CACHE")  # timings differ a little from run to run, unless they are kept
    one, two = run(strategy), run(strategy)
    assert [trial.plan for trial in one.trials] == [trial.plan for trial in two.trials]
    assert [trial.score for trial in one.trials] == [trial.score for trial in two.trials]


def test_by_size_they_also_end_with_the_same_plan() -> None:
    one, two = run("auto", objective="modelsize"), run("auto", objective="modelsize")
    assert one.met
    assert one.plan == two.plan
    assert any(scheme.repairs for scheme in one.plan.values())
    assert len(one.trials) == 1
