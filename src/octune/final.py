"""The final round: the winner in its other forms, and float models that may be faster still.

    final_round(job, best, ops, ranges)     # best: the fastest plan that passes, if there is one

Making a float form may take as long as making the int8 one, so it has to be worth it: float competes where
int8 is not faster than any float form was ever seen to be, or where making it takes less time than the rest
of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octune.calibration import Ranges
from octune.choice import fastest_passing
from octune.cost.latency import FP32, Speedup, Timed
from octune.engine import Study
from octune.engine.forms import trial_key
from octune.errors import OctuneError
from octune.job import Job
from octune.plan import Op, Plan, Scheme
from octune.result import Trial
from octune.sizes import describe, other_size

__all__ = ["REACH", "final_round"]

# Times as fast as fp32 as it came. Of the float forms in docs/benchmarks.md none comes near: compilers and
# other runtimes reach 1.3 in fp32, bf16 1.75.
REACH = 2.0


def final_round(job: Job, best: Trial | None, ops: Sequence[Op], ranges: Ranges) -> None:
    """Make, time and score what may be faster than the plans as they were tried; the study has it then."""
    study = job.study
    made = best is None or study.forms.make(best, ranges)
    if study.stop.interrupted:
        return
    winner = fastest_passing(study, job)
    if winner is not None:
        _say_eager(study, winner)
    # what int8 ops could not be exported from cannot be exported at all
    if made and _float_competes(job, winner, ranges):
        _try_floats(job, ops, ranges)
    if not study.stop.interrupted:
        _look_at_another_size(job)


def _look_at_another_size(job: Job) -> None:
    """Say so if the form that won is slower than the plain one for inputs of a size that it was not timed
    with.
    """
    study, winner = job.study, fastest_passing(job.study, job)
    model = None if winner is None else study.models.get(winner.key)
    if winner is None or model is None or study.stopwatch.sizes:
        return
    found = other_size(study.backend, study.stopwatch.example)
    if found is None:
        return
    label, inputs = found

    def timed() -> dict[str, Any] | None:
        study.clock.enter("finalists", f"timing the winner at {label}")
        try:
            return study.against_plain(winner, model, inputs).to_json()
        except OctuneError:  # it takes one size only
            return None

    try:
        answer = study.journal.once("other size", {"trial": winner.key, "size": label}, timed)
    except KeyboardInterrupt:
        study.stop.interrupted = True
        return
    if answer is not None and FP32.beats(speed := Timed.from_json(answer).speed):
        plain = "fp32 as it came" if winner.dtype == "fp32" else f"eager {winner.dtype}"
        study.note(
            f"at {label} the {winner.form} form is slower than {plain} ({speed}); it was chosen at "
            f"{describe(study.backend, study.stopwatch.example)}. performance.inputs names the sizes that "
            "matter"
        )


def _say_eager(study: Study, winner: Trial) -> None:
    """A word on the eager form, where people deploy that."""
    eager = next((t for t in study.trials if t.form == "eager" and t.plan == winner.plan), None)
    if study.backend.eager_title and winner.form != "eager" and eager is not None and eager.speed is not None:
        study.note(
            f"{study.backend.eager_title} is {eager.speed} as fast as fp32; the winner runs as {winner.form}"
        )


def _float_competes(job: Job, winner: Trial | None, ranges: Ranges) -> bool:
    study, wanted = job.study, job.config.performance.compare_fp32
    if wanted != "auto" or study.stopwatch.example is None:
        return wanted == "always"
    if study.forms.known(_in_fp32(study).plan, ranges):
        return True
    making, left = sum(study.forms.making.values()), study.stop.left
    if left is not None and left <= making:
        return False
    slow = winner is None or winner.speed is None or winner.speed.low < REACH
    if slow and job.config.tuning.objective == "performance":
        return True
    if winner is None or winner.form not in study.backend.fp32_forms:
        return False
    if 2 * making < study.stop.seconds:
        return True
    study.note(
        f"fp32 was not made {winner.form} to compare: that takes as long as the rest of the run, and int8 is "
        "faster than any form of fp32 is likely to be; performance.compare_fp32: always does it"
    )
    return False


def _try_floats(job: Job, ops: Sequence[Op], ranges: Ranges) -> None:
    """fp32 in its other forms, then every op in bf16 that can be."""
    study = job.study
    if study.backend.fp32_forms:
        study.forms.make(_in_fp32(study), ranges, _to_beat(study, job))
    plan = Plan({op.name: Scheme.bf16() if Scheme.bf16() in op.schemes else Scheme.fp32() for op in ops})
    wanted = plan.names("bf16") and job.config.tuning.objective == "performance"
    if not wanted or study.stop.interrupted or any(trial.plan == plan for trial in study.trials):
        return
    study.clock.enter("finalists", "timing bf16")
    try:
        found = _bf16(study, plan, ranges, _to_beat(study, job))
    except KeyboardInterrupt:
        study.stop.interrupted = True
        return
    if found is not None and fastest_passing(study, job) is found:
        study.forms.make(found, ranges)


def _bf16(study: Study, plan: Plan, ranges: Ranges, rival: Speedup) -> Trial | None:
    """The trial of a plan in bf16, which is scored if it is clearly faster than its rival, or cannot be tried
    in this process.
    """
    reason, key = "every op that can be in bf16", trial_key("eager", plan, ranges)
    with study.apart.looking("trial", key) as apart:
        if apart:
            return study.trial(plan, reason, ranges)
        model = study.backend.apply(plan, ranges)
        found = study.forms.candidate("eager", model, plan, ranges, rival, reason)
    if found is None:  # it ended nothing
        study.journal.append("interrupted", {"of": "trial", **key})
    return found


def _in_fp32(study: Study) -> Trial:
    return Trial(Plan({op.name: Scheme.fp32() for op in study.backend.ops()}), form="fp32", speed=FP32)


def _to_beat(study: Study, job: Job) -> Speedup:
    winner = fastest_passing(study, job)
    return FP32 if winner is None or winner.speed is None else winner.speed
