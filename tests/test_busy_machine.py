"""A run beside processes that want every core: the same winner as without them, or an honest word that speeds cannot be compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import octune

# It ends by itself, should nobody be left to end it.
SPIN = "import time; end = time.monotonic() + 600\nwhile time.monotonic() < end: pass"


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def tune() -> octune.Result:
    """A model that int8 makes faster, were it left alone. What it scores does not matter here."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU()))).eval()
    return octune.tune(
        model,
        calibration=[torch.randn(64, 512) for _ in range(2)],
        evaluate=lambda model: 1.0,
        config={"performance": {"compile": "never"}},
    )


@pytest.mark.slow
def test_a_busy_machine_gives_the_same_winner_or_says_that_it_is_too_busy() -> None:
    alone = tune()
    with spinning(len(os.sched_getaffinity(0))):
        crowded = tune()
    same = crowded.best.form == alone.best.form and crowded.plan.names("int8") == alone.plan.names("int8")
    assert same or any("too busy to compare speeds" in note for note in crowded.notes), f"{alone}\n{crowded}"
    # Whatever won, what is said of a plan beside others does not contradict what is said of it alone.
    for trial in crowded.trials:
        for other in alone.trials:
            if trial.plan == other.plan and trial.speed is not None and other.speed is not None:
                assert not trial.speed.beats(other.speed), f"{trial.speed} beside others, {other.speed} alone"
                assert not other.speed.beats(trial.speed), f"{trial.speed} beside others, {other.speed} alone"
