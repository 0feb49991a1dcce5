"""Forms of a plan that take longer to make than the eager one: compiled, on another runtime; of the winner,
and of float models that may be faster.

    study.forms.make(winner, ranges)        # those that are clearly faster become trials
    study.forms.floats                      # how fast float models are, as far as they were timed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.cost.latency import FP32, Speedup, Timed
from octune.engine.isolation import Gone
from octune.errors import ClusterError, summary
from octune.harm.probe import largest_change
from octune.plan import Plan
from octune.result import Trial

if TYPE_CHECKING:
    from octune.engine.local import Study

__all__ = ["Forms", "trial_key"]

log = logging.getLogger("octune")
# How far an output may be from fp32's, over the spread of that output, to count as the same: other kernels
# that add in another order come to a hundredth of it.
FLOAT_PRECISION = 1e-4


class Forms:
    """Makes, times and scores them for one study."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.making: dict[str, float] = {}  # seconds that each took to make, when it was made first
        self.floats: dict[str, Timed] = {}  # how fast float models are, by title

    def make(self, winner: Trial, ranges: Ranges, rival: Speedup | None = None) -> bool:
        """Make the forms of a plan that take longer to make; one that is clearly faster than its ``rival``
        (the plan as it was tried) is scored before it may win. Returns whether they could be made.
        """
        study = self._study
        if study.stopwatch.example is None:
            return True
        what = "fp32" if winner.dtype == "fp32" else "the winner"
        study.clock.enter("finalists", f"making other forms of {what}")
        key = {"digest": winner.plan.digest, "samples": ranges.samples}
        rival = rival or winner.speed or FP32
        try:
            if study.journal.known("forms", key) is None:
                apart = study.apart.wanted("forms", key)
                study.journal.begin("forms", key)
                if apart:
                    study.apart.forms(winner, ranges, rival)
            forms = []
            for form, model in self._forms(winner, ranges, study.journal.known("forms", key)):
                self.candidate(form, model, winner.plan, ranges, rival, f"{what}, {form}")
                forms.append(form)
            if not study.stop.interrupted:
                study.journal.once("forms", key, lambda: forms)
        except KeyboardInterrupt:
            study.stop.interrupted = True
            study.journal.append("interrupted", {"of": "forms", **key})
        except ClusterError:
            raise
        except Exception as error:
            log.debug("finalist", exc_info=True)
            # making them here may end the process once more
            ended = "forms" if isinstance(error, Gone) else "interrupted"
            study.journal.append(ended, {"of": "forms", **key, "answer": []})
            stays = "fp32 has no other form" if what == "fp32" else f"the winner stays eager {winner.dtype}"
            study.note(f"{stays}: {type(error).__name__}: {summary(error)}")
            return False
        return True

    def known(self, plan: Plan, ranges: Ranges) -> bool:
        """Whether the journal says which forms of a plan there are."""
        key = {"digest": plan.digest, "samples": ranges.samples}
        return self._study.journal.known("forms", key) is not None

    def _forms(self, winner: Trial, ranges: Ranges, tried: list[str] | None) -> Iterator[tuple[str, Any]]:
        """The forms by name, made one by one. Of those that an earlier process has tried, only what passed
        is made again: it may be handed over. All is known of the others, which come without a model.
        """
        study = self._study
        lost = [form for form in tried or () if not self._passed(form, winner.plan, ranges)]
        yield from ((form, None) for form in lost)
        if tried is not None and len(lost) == len(tried):
            return
        begun = time.perf_counter()
        for finalist in study.backend.finalists(winner.plan, ranges, study.stopwatch.example):
            self.making[finalist.form] = max(finalist.seconds, time.perf_counter() - begun)
            if finalist.form not in lost:
                yield finalist.form, finalist.model
            begun = time.perf_counter()

    def _passed(self, form: str, plan: Plan, ranges: Ranges) -> bool:
        """Whether the journal has a trial of this form that passed."""
        study = self._study
        answer = study.journal.known("trial", trial_key(form, plan, ranges))
        return answer is not None and study.judged(answer).passed

    def candidate(
        self, form: str, model: Any, plan: Plan, ranges: Ranges, rival: Speedup, reason: str
    ) -> Trial | None:
        """Time a form of a plan, and score it if it is clearly faster than its rival. fp32 in a form whose
        outputs are fp32's own to float precision has fp32's score.
        """
        study, key = self._study, trial_key(form, plan, ranges)
        trial = Trial(plan, form=form, reason=reason, samples=ranges.samples)

        def timed() -> dict[str, Any]:
            found = study.speed(study.placed(model, trial), rival)
            return {"speed": None} if found is None else found.to_json()

        answer = study.journal.once("speed", key, timed)
        if answer["speed"] is None:
            return None
        measured = Timed.from_json(answer)
        if trial.dtype != "int8":
            self.floats[trial.title] = measured
        if not measured.speed.beats(rival):
            if trial.dtype == "int8":
                study.note(
                    f"the {form} form is not clearly faster than eager int8 ({measured.speed}, eager "
                    f"{rival}), so it is not used"
                )
            return None

        def tried() -> dict[str, Any] | None:
            study.clock.enter("trial", f"scoring {trial.title}")
            same = self._as_fp32(trial.timed(measured), model) if trial.dtype == "fp32" else None
            return same or study.attempt(trial, lambda: model, lambda _: measured)

        scored = study.add(study.journal.once("trial", key, tried))
        # slow to make, so it is kept
        if form != "eager" and model is not None and scored is not None and scored.score is not None:
            study.models[scored.key] = study.backend.undo_user_changes(model)
        return scored

    def _as_fp32(self, trial: Trial, model: Any) -> dict[str, Any] | None:
        """A trial of fp32 in another form, as plain data, where its outputs are fp32's own to float
        precision; None where it has to be scored.
        """
        study, begun = self._study, time.perf_counter()
        fp32, inputs = study.baseline_trial, study.survey.some()
        if fp32 is None or fp32.score is None or not inputs:
            return None
        try:
            wanted = [study.backend.run(study.stopwatch.fp32_model, one) for one in inputs]
            change = largest_change(wanted, [study.backend.run(model, one) for one in inputs])
        except Exception:  # scoring will say what is wrong
            log.debug("outputs of %s", trial.title, exc_info=True)
            return None
        if not change <= FLOAT_PRECISION:
            return None
        reason = f"{trial.reason}: same outputs (within {change:.0e} of their spread), so not scored"
        size, seconds = study.backend.size(model), time.perf_counter() - begun
        return replace(trial, reason=reason, score=fp32.score, size=size, seconds=seconds).to_json()


def trial_key(form: str, plan: Plan, ranges: Ranges) -> dict[str, Any]:
    """What a trial is found by in the journal."""
    return {"form": form, "digest": plan.digest, "samples": ranges.samples}
