"""Which questions of a study go to a process of its own, and what becomes of its answers.

apart = Apart(study, isolation, always=config.tuning.isolate)
if apart.wanted("trial", key):
    answer = apart.trial(trial, ranges)         # that the process has ended is an answer, too
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.engine.isolation import Gone, Isolation, Limits
from octune.errors import ConfigError, OctuneError
from octune.harm import WORST
from octune.plan import Plan
from octune.result import Trial

if TYPE_CHECKING:
    from octune.engine.local import Study

__all__ = ["Apart"]


@dataclass
class Apart:
    """Asks for all trials (``always``), or for those at which an earlier process of the run has ended."""

    study: Study
    isolation: Isolation
    always: bool = False

    def wanted(self, event: str, key: Mapping[str, Any]) -> bool:
        """Whether an answer is to be looked for in a process of its own."""
        if not (self.always or self.study.journal.broken_off(event, key)):
            return False
        try:
            self.isolation.start()
        except ConfigError as error:
            if self.always:
                raise
            self.study.note(f"an earlier process ended at this {event}, which is tried here again: {error}")
            return False
        if not self.always:
            self.study.listener.note(
                f"an earlier process ended at this {event}: it is tried in a process of its own"
            )
        return True

    def trial(self, trial: Trial, ranges: Ranges) -> dict[str, Any] | None:
        """What came of a trial, as plain data; None when the user interrupted it."""
        begun = time.perf_counter()
        try:
            records = self._ask("trial", plan=trial.plan, reason=trial.reason, ranges=ranges)
            answer: dict[str, Any] = next(record["answer"] for event, record in records if event == "trial")
            return answer
        except KeyboardInterrupt:
            self.study.stop.interrupted = True
            return None
        except OctuneError as gone:
            return replace(trial, error=str(gone), seconds=time.perf_counter() - begun).to_json()

    def finalists(self, winner: Trial, ranges: Ranges) -> None:
        """Have the forms of the winner made, timed and scored; the journal then knows what came of it."""
        known = self.study.journal.sequence("trial", "speed")  # what was finished is not done again there
        for event, record in self._ask("finalists", winner=winner, ranges=ranges, known=known):
            self.study.journal.append(event, record)

    def plan_harm(self, plan: Plan, ranges: Ranges) -> float | None:
        """The harm of a plan; None if it is to be measured here."""
        if not self.wanted("plan harm", {"samples": ranges.samples, "plan": plan.digest}):
            return None
        try:
            harm: float | None = self._ask("plan harm", plan=plan, ranges=ranges)
        except OctuneError as gone:
            self.study.note(f"a plan cannot even be looked at: {gone}")
            return WORST
        return harm

    def close(self) -> None:
        """The run is over."""
        self.isolation.close()

    def _ask(self, what: str, **given: Any) -> Any:
        """What the other process answers; it gets all that this one has learned and it needs."""
        study, fp32 = self.study, self.study.baseline_trial
        if fp32 is None:
            raise Gone("there is nothing to compare with")
        state = {
            "pairing": study.pairing.to_json(),
            "baseline": fp32.to_json(),
            "costs": study.stopwatch.costs,
            "example": study.stopwatch.example,
        }
        try:
            return self.isolation.ask(what, Limits(study.evaluator.limit, fp32.seconds), **state, **given)
        finally:
            if not self.always:
                self.isolation.close()
