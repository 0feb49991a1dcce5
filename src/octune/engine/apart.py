"""Which questions of a study go to a process of its own, and what becomes of its answers.

with study.apart.looking("trial", key) as apart:        # the journal knows what this process looks for
    answer = study.apart.trial(trial, ranges) if apart else ...     # that it has ended is an answer, too
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.cost.latency import Speedup
from octune.engine.isolation import Gone, Isolation, Limits
from octune.errors import ConfigError, OctuneError, plural
from octune.harm import WORST
from octune.plan import Op, Plan
from octune.result import Trial

if TYPE_CHECKING:
    from octune.engine.local import Study

__all__ = ["Apart"]

MOST = 24  # processes that may end while ops are probed; what is left then stays in float
SAID = {
    "trial": "this trial",
    "forms": "other forms of a plan",
    "plan harm": "the look at this plan",
    "harm": "the harm of ops",
    "cost": "the cost of ops",
}


@dataclass
class Apart:
    """Asks for everything that runs kernels of plans (``always``), or for that at which an earlier process of
    the run has ended. Without an ``isolation`` nothing is asked of another process.
    """

    study: Study
    isolation: Isolation | None = None
    always: bool = False
    elsewhere: frozenset[str] = frozenset()  # what other processes answer anyway: workers of a cluster

    @contextmanager
    def looking(self, event: str, key: Mapping[str, Any]) -> Iterator[bool]:
        """While an answer is looked for: whether to ask a process of its own. The journal notes that it was
        begun, and what this process has survived was no crash.
        """
        apart, journal = self.wanted(event, key), self.study.journal
        journal.begin(event, key)
        try:
            yield apart
        except Gone:  # to look for it here may end this process
            raise
        except BaseException:
            journal.append("interrupted", {"of": event, **key})
            raise

    def wanted(self, event: str, key: Mapping[str, Any]) -> bool:
        """Whether an answer is to be looked for in a process of its own."""
        broken_off = self.study.journal.broken_off(event, key)
        if self.isolation is None or event in self.elsewhere or not (self.always or broken_off):
            return False
        try:
            self.isolation.start()
        except ConfigError as error:
            if self.always:
                raise
            self.study.note(f"an earlier process ended at {SAID[event]}, which is tried here again: {error}")
            return False
        if not self.always:
            self.study.listener.note(
                f"an earlier process ended at {SAID[event]}: it is tried in a process of its own"
            )
        return True

    def trial(self, trial: Trial, ranges: Ranges) -> dict[str, Any] | None:
        """What came of a trial, as plain data; None when the user interrupted it."""
        begun = time.perf_counter()
        try:
            answer: dict[str, Any] = self._ask("trial", plan=trial.plan, reason=trial.reason, ranges=ranges)
            return answer
        except KeyboardInterrupt:
            self.study.stop.interrupted = True
            return None
        except OctuneError as gone:
            return replace(trial, error=str(gone), seconds=time.perf_counter() - begun).to_json()

    def forms(self, winner: Trial, ranges: Ranges, rival: Speedup) -> None:
        """Have the forms of a plan made, timed and scored; the journal then knows what came of it."""
        journal = self.study.journal
        known = journal.sequence("trial", "speed")  # what was finished is not done again there
        self._ask("forms", learned=journal.append, winner=winner, ranges=ranges, rival=rival, known=known)

    def plan_harm(self, plan: Plan, ranges: Ranges, here: Callable[[], float]) -> float:
        """The harm of a plan; ``here`` measures it in this process."""
        with self.looking("plan harm", {"samples": ranges.samples, "plan": plan.digest}) as apart:
            if not apart:
                return here()
            try:
                harm: float | None = self._ask("plan harm", plan=plan, ranges=ranges)
            except OctuneError as gone:
                self.study.note(f"a plan cannot even be looked at: {gone}")
                return WORST
            return here() if harm is None else harm

    def of_ops(
        self, event: str, ops: Sequence[Op], ranges: Ranges, here: Callable[[], list[list[Any]]]
    ) -> list[list[Any]]:
        """Rows of harm or cost of single ops; ``here`` makes them in this process. An op that ends the
        process which tries it has none, and the journal says why.
        """
        with self.looking(event, {"samples": ranges.samples}) as apart:
            return self._divided(event, [op for op in ops if _has_choice(op)], ranges) if apart else here()

    def _divided(self, event: str, ops: Sequence[Op], ranges: Ranges) -> list[list[Any]]:
        """All at once; those that end the process are halved, until it is known which ops do."""
        rows: list[list[Any]] = []
        ended: list[str] = []
        crashes, parts = 0, deque([ops] if ops else [])
        while parts:
            some = parts.popleft()
            try:
                if crashes >= MOST:
                    raise Gone(f"it was not tried by itself, since {MOST} processes had ended before")
                rows += self._ask(event, choices=sum(len(op.schemes) for op in some), ops=some, ranges=ranges)
            except Gone as gone:
                crashes += 1
                if len(some) > 1 and crashes < MOST:
                    parts += [some[: len(some) // 2], some[len(some) // 2 :]]
                    continue
                for op in some:
                    why = f"{SAID[event]} cannot be found: {gone}"
                    self.study.journal.append("crashed", {"of": event, "op": op.name, "why": why})
                ended += [op.name for op in some]
        if ended:
            these = ", ".join(ended[:3]) + (", ..." if len(ended) > 3 else "")
            self.study.note(
                f"{plural(len(ended), 'op')} ended the process that looked for {SAID[event]}, and "
                f"{'stays' if len(ended) == 1 else 'stay'} in float: {these}"
            )
        return rows

    def close(self) -> None:
        """The run is over."""
        if self.isolation is not None:
            self.isolation.close()

    def _ask(self, event: str, choices: int = 0, **given: Any) -> Any:
        """What the other process answers; it gets all that this one has learned and it needs."""
        study, fp32 = self.study, self.study.baseline_trial
        if self.isolation is None:
            raise Gone("there is no process to ask")
        state = {
            "pairing": study.pairing.to_json(),
            "baseline": None if fp32 is None else fp32.to_json(),
            "costs": study.stopwatch.costs,
            "example": study.stopwatch.example,
        }
        limits = Limits(study.evaluator.limit, 0.0 if fp32 is None else fp32.seconds, choices)
        try:
            return self.isolation.ask(event, limits, **state, **given)
        finally:
            if not self.always:
                self.isolation.close()


def _has_choice(op: Op) -> bool:
    return any(scheme.dtype != "fp32" for scheme in op.schemes)
