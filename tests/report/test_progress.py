"""The live view: trials, the best so far, and a time left that is measured or not shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

pytest.importorskip("torch")

import octune
from octune.cost.latency import Speedup
from octune.criterion import Relative
from octune.plan import Plan, Scheme
from octune.report.progress import LiveProgress, Pace, best_so_far
from octune.result import Trial
from octune.score import Score
from tests.digits import config, digits


def trial(score: float, speed: float, form: str = "eager") -> Trial:
    plan = Plan({"a": Scheme.fp32() if form == "fp32" else Scheme.int8()})
    made = Trial(plan, form=form, score=Score.of(score), speed=Speedup(speed, speed, speed), seconds=8.0)
    return made.judged(Relative(0.01), Score.of(0.9))


def test_the_best_is_the_fastest_that_passes() -> None:
    trials = [trial(0.9, 1.0, "fp32"), trial(0.5, 4.0), trial(0.9, 2.0), trial(0.895, 3.0), trial(0.9, 2.5)]
    found = best_so_far(trials)
    assert found is not None
    assert (found[0], found[1].speedup) == (3, 3.0)
    assert best_so_far(trials[:2]) is None


def test_time_left_is_what_was_measured() -> None:
    now = 100.0
    pace = Pace(lambda: now)
    assert (pace.left, pace.share) == (None, None)
    pace(0.1)
    assert pace.left is None, "one look says nothing about speed"
    now = 110.0
    pace(0.3)
    assert pace.left == pytest.approx(35.0)
    now = 115.0
    assert pace.left == pytest.approx(30.0), "it goes on between two looks"
    pace(0.05)
    assert pace.left is None, "another walk over the data"


def test_what_is_shown() -> None:
    out = io.StringIO()
    live = LiveProgress(Console(file=out, width=160, force_terminal=False))
    shown = Console(file=io.StringIO(), width=160, record=True)
    live.stage("baseline", "scoring the fp32 model")
    shown.print(live)
    live.trial(trial(0.9, 1.0, "fp32"))
    live.stage("trial", "every op in its fastest scheme")
    shown.print(live)
    live.trial(trial(0.5, 4.0))
    shown.print(live)
    live.trial(trial(0.9, 2.0))
    shown.print(live)
    first, second, third, fourth = shown.export_text().split("baseline: ")[1].split("[0 s")[:4]
    assert "left" not in first
    assert "nothing has met the criterion yet" not in second
    assert "nothing has met the criterion yet" in third
    assert "best so far: trial 2 (eager), score 0.9000, 2.00x" in fourth
    live.close()


def test_a_run_says_how_far_it_has_come() -> None:
    class Ear(octune.Listener):
        shares: list[float] = []  # noqa: RUF012

        def progress(self, share: float) -> None:
            self.shares.append(share)

    data = digits()
    octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluation=data.labelled(),
        metric="accuracy",
        config=config(),
        listener=Ear(),
    )
    batches = len(data.labelled())
    assert Ear.shares[:batches] == pytest.approx([(n + 1) / batches for n in range(batches)])
    assert Ear.shares[batches:][-1] == pytest.approx(1.0)
