"""A run beside processes that want every core: an honest word that speeds cannot be compared, and nothing
that a run alone refutes.
"""

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
def test_a_machine_that_is_too_busy_to_compare_speeds_is_said_to_be_so() -> None:
    alone = tune()
    with spinning(len(os.sched_getaffinity(0))):
        crowded = tune()
    assert any("too busy to compare speeds" in note for note in crowded.notes), str(crowded)
    for trial in crowded.trials:
        for other in alone.trials:
            if trial.plan == other.plan and trial.speed is not None and other.speed is not None:
                assert not trial.speed.beats(other.speed), f"{trial.speed} beside others, {other.speed} alone"
                assert not other.speed.beats(trial.speed), f"{trial.speed} beside others, {other.speed} alone"
