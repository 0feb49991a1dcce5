"""Which trial is handed over: the fastest that passes, or the smallest where size is the objective.

best = fastest_passing(study, job)
"""

from __future__ import annotations

from collections.abc import Sequence

from octune.cost.latency import FP32
from octune.engine import Study
from octune.job import Job
from octune.result import Trial

__all__ = ["fastest_passing"]


def _faster(trial: Trial) -> bool:
    """Whether it is clearly faster than fp32. Where others kept the machine too busy to tell, the costs of
    its ops have to do.
    """
    speed = trial.speed
    return speed is None or speed.beats(FP32) or (speed.disturbed and not FP32.beats(speed))


def fastest_passing(study: Study, job: Job, *, allow_slower: bool = False) -> Trial | None:
    """The passing trial that serves the objective best. Where that is speed, one that is not faster than fp32
    never wins.

    What changes nothing, neither numbers nor the way it runs, never wins, whatever the noise of its timing
    says.
    """
    passing = [
        trial for trial in study.trials if trial.passed and (trial.dtype, trial.form) != ("fp32", "eager")
    ]
    if job.config.tuning.objective == "performance":
        passing = [trial for trial in passing if allow_slower or _faster(trial)]
        # Of those that tie in speed the smallest wins, and if sizes tie as well, the first.
        passing = _smallest(_unbeaten(passing))
    else:
        passing = _unbeaten(_smallest([trial for trial in passing if trial.dtype != "fp32"]))
    return next(iter(passing), None)


def _unbeaten(trials: Sequence[Trial]) -> list[Trial]:
    """Those that no other is clearly faster than."""
    fastest = max(
        (trial.speed for trial in trials if trial.speed is not None),
        key=lambda speed: speed.low,
        default=FP32,
    )
    return [trial for trial in trials if trial.speed is None or not fastest.beats(trial.speed)]


def _smallest(trials: Sequence[Trial]) -> list[Trial]:
    least = min((trial.size or 0 for trial in trials), default=0)
    return [trial for trial in trials if (trial.size or 0) == least]
