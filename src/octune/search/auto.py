"""The default strategy: everything int8, and if that loses too much, as few ops in float as will do.

1. Every op in its fastest scheme. Passes: done.
2. Ops are ranked by label-free harm per millisecond; one that a repair helps is repaired, others are left in float. Gallop: leave a
   quarter of the predicted harm, a sixteenth, ... until a plan passes. Where a single op does nearly all of it, that is one trial.
3. Bisect between the last failure and the first success, for the fewest ops in float.
4. Give back: the ops that fell for the least harm per millisecond are tried in int8 again, while the criterion holds.

Scores are noisy and not monotonic in the number of float ops, so a plan is only ever accepted for its own score.
Costs 1 evaluation if int8 is harmless, else about 2 + log2(number of ops).
"""

from __future__ import annotations

from collections.abc import Generator

from octune.plan import Plan
from octune.result import Trial
from octune.search.base import Proposal, Search, Strategy
from octune.search.space import Switch

__all__ = ["Auto"]

KEEP_SHARE = 0.25
GIVE_BACK = 2


class Auto(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        start = self.space.fastest()
        first = yield Proposal(start, "every op in its fastest scheme")
        if first.passed:
            return
        chain = self.space.chain()
        failing, passing = yield from self._first_success(start, chain)
        if passing is None and any(step.scheme.dtype != "fp32" for step in chain):
            # bf16 everywhere was not enough, or does not run here: fp32 is.
            chain = self.space.chain(exact=True)
            failing, passing = yield from self._first_success(start, chain)
        if passing is None:
            return
        while passing - failing > 1:
            middle = (failing + passing) // 2
            trial = yield self._propose(start, chain, middle)
            if trial.passed:
                passing = middle
            else:
                failing = middle
        yield from self._give_back(start, chain[:passing])

    def _first_success(self, start: Plan, chain: list[Switch]) -> Generator[Proposal, Trial, tuple[int, int | None]]:
        """How many steps of the chain failed last, and how many passed first (None: not even all of them)."""
        failing = 0
        for count in self._gallop(start, chain):
            trial = yield self._propose(start, chain, count)
            if trial.passed:
                return failing, count
            failing = count
        return failing, None

    def _propose(self, start: Plan, chain: list[Switch], count: int) -> Proposal:
        plan = self._plan(start, chain, count)
        moved = [plan[op] for op in {step.op for step in chain[:count]}]
        repaired, floats = sum(bool(scheme.repairs) for scheme in moved), sum(scheme.is_float for scheme in moved)
        parts = [f"{repaired} repaired"] * bool(repaired) + [f"{floats} in float"] * bool(floats)
        return Proposal(plan, f"of the most harmful ops {' and '.join(parts)}")

    def _plan(self, start: Plan, chain: list[Switch], count: int) -> Plan:
        return start.with_({step.op: step.scheme for step in chain[:count]})

    def _gallop(self, start: Plan, chain: list[Switch]) -> list[int]:
        """How many steps to take: until a quarter of the predicted harm is left, a sixteenth, ...; at last, all of them."""
        total = sum(max(step.relief, 0.0) for step in chain)
        counts: list[int] = []
        left, share = total, KEEP_SHARE
        for index, step in enumerate(chain, 1):
            left -= max(step.relief, 0.0)
            if left <= share * total:
                counts.append(index)
                while share > 0 and left <= share * total and share > 1e-9:
                    share *= KEEP_SHARE
                # A step at a time would be a walk, not a gallop.
                share = min(share, KEEP_SHARE ** (len(counts) + 1))
        spread = [count for i, count in enumerate(counts) if i == 0 or count >= 1.5 * counts[i - 1]]
        return sorted({*spread, len(chain)}) if chain else []

    def _give_back(self, start: Plan, kept: list[Switch]) -> Search:
        """Try the least harmful of the fallen ops in int8 again; the last one of the chain is known to be needed."""
        plan = self._plan(start, kept, len(kept))
        fallen = [step for step in kept[:-1] if plan[step.op] == step.scheme and step.scheme.is_float]
        candidates = sorted(fallen, key=lambda s: self._saving(start, s) / max(s.relief, 1e-12), reverse=True)
        for step in candidates if self.keep_going else candidates[:GIVE_BACK]:
            repaired = next((other.scheme for other in kept if other.op == step.op and other.scheme.repairs), None)
            trial = yield Proposal(plan.with_({step.op: repaired or start[step.op]}), f"{step.op} back to int8")
            if trial.passed:
                plan = trial.plan

    def _saving(self, start: Plan, step: Switch) -> float:
        return self.space.milliseconds(step.op, step.scheme) - self.space.milliseconds(step.op, start[step.op])
