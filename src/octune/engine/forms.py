"""The forms of a winning plan that take longer to make than the eager one: compiled, on another runtime.

study.forms.make(winner, ranges)                # those that are clearly faster become trials
study.forms.fp32("compiled", ranges, always=False)      # what of the gain is not int8's
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.cost.latency import FP32, Timed
from octune.engine.isolation import Gone
from octune.errors import ClusterError, summary
from octune.plan import Plan, Scheme
from octune.result import Trial

if TYPE_CHECKING:
    from octune.engine.local import Study

__all__ = ["Forms", "trial_key"]

log = logging.getLogger("octune")


class Forms:
    """Makes, times and scores them for one study."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.making: dict[str, float] = {}  # seconds that each took to make

    def make(self, winner: Trial, ranges: Ranges) -> None:
        """Make the forms of a winning plan that take longer to make; one that is clearly faster is scored
        before it may win.
        """
        study = self._study
        if study.stopwatch.example is None:
            return
        study.clock.enter("finalists", "compiling the winner")
        key = {"digest": winner.plan.digest, "samples": ranges.samples}
        try:
            if study.journal.known("forms", key) is None:
                apart = study.apart.wanted("forms", key)
                study.journal.begin("forms", key)
                if apart:
                    study.apart.forms(winner, ranges)
            forms = []
            for form, model in self._forms(winner, ranges, study.journal.known("forms", key)):
                self._finalist(form, model, winner, ranges)
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
            study.note(f"the winner stays eager int8: {type(error).__name__}: {summary(error)}")

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

    def fp32(self, form: str, ranges: Ranges, *, always: bool) -> Timed | None:
        """How fast fp32 is in a form that int8 has won in: what is left is what int8 itself gains. None where
        fp32 has no such form, or where it would take longer to make than all the rest of the run.
        """
        study = self._study
        known = any(record["form"] == form for record in study.journal.records("fp32 form"))
        seconds, left = self.making.get(form, 0.0), study.stop.left
        cheap = 2 * seconds < study.stop.seconds and (left is None or seconds < left)
        if form not in study.backend.fp32_forms:
            return None
        if not (always or known or cheap):
            study.note(
                f"what int8 itself gains was not measured, because making fp32 {form} as well would take as "
                "long as all the rest; performance.compare_fp32: always measures it"
            )
            return None

        def timed() -> dict[str, Any] | None:
            study.clock.enter("comparison", f"fp32 in the winner's form ({form})")
            with study.apart.looking("fp32 form", {"form": form}) as apart:
                answer: dict[str, Any] | None = (
                    study.apart.fp32_in_form(form, ranges) if apart else self.fp32_speed(form, ranges)
                )
                return answer

        try:
            answer = study.journal.once("fp32 form", {"form": form}, timed)
        except KeyboardInterrupt:
            study.stop.interrupted = True
            return None
        except Exception as error:
            log.debug("fp32 form", exc_info=True)
            study.note(f"fp32 could not be timed as {form}: {type(error).__name__}: {summary(error)}")
            return None
        return None if answer is None else Timed.from_json(answer)

    def fp32_speed(self, form: str, ranges: Ranges) -> dict[str, Any] | None:
        """Make fp32 in a form and time it: plain data, None where it has no such form."""
        study = self._study
        plan = Plan({op.name: Scheme.fp32() for op in study.backend.ops()})
        for finalist in study.backend.finalists(plan, ranges, study.stopwatch.example):
            model = study.placed(finalist.model, Trial(plan, form=finalist.form, samples=ranges.samples))
            found = study.speed(model) if finalist.form == form else None
            if found is not None:
                return found.to_json()
        return None

    def _finalist(self, form: str, model: Any, winner: Trial, ranges: Ranges) -> None:
        study = self._study
        key, rival = trial_key(form, winner.plan, ranges), winner.speed or FP32
        trial = Trial(winner.plan, form=form, reason=f"the winner, {form}", samples=ranges.samples)

        def timed() -> dict[str, Any]:
            found = study.speed(study.placed(model, trial), rival)
            return {"speed": None} if found is None else found.to_json()

        answer = study.journal.once("speed", key, timed)
        if answer["speed"] is None:
            return
        measured = Timed.from_json(answer)
        if not measured.speed.beats(rival):
            study.note(
                f"the {form} form is not clearly faster than eager int8 ({measured.speed}, eager {rival}), "
                "so it is not used"
            )
            return

        def tried() -> dict[str, Any] | None:
            study.clock.enter("trial", f"scoring the {form} form of the winner")
            return study.attempt(trial, lambda: model, lambda _: measured)

        scored = study.add(study.journal.once("trial", key, tried))
        # slow to make, so it is kept
        if model is not None and scored is not None and scored.score is not None:
            study.models[scored.key] = study.backend.undo_user_changes(model)


def trial_key(form: str, plan: Plan, ranges: Ranges) -> dict[str, Any]:
    """What a trial is found by in the journal."""
    return {"form": form, "digest": plan.digest, "samples": ranges.samples}
