"""All plans there are, the fastest first by predicted cost: the first one that passes is the best one there
is.

Every op may be in its fastest scheme, repaired, dynamic, bf16 or fp32, so there are up to 5^n plans for n
ops: this is for models with a handful of ops, and a yardstick for other strategies. It ends with
``max_trials`` or ``timeout`` where there are more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from octune.cost.noise import CLEAR
from octune.plan import Plan
from octune.search.base import Proposal, Search, Strategy

__all__ = ["Exhaustive"]


@dataclass(frozen=True, slots=True)
class _Predicted(Proposal):
    """A plan with its predicted cost."""

    cost: float


class Exhaustive(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        passed: float | None = None
        for proposal in self.announced(
            _Predicted(plan, f"the next fastest plan, predicted {cost:.4g}", cost)
            for cost, plan in self._plans()
        ):
            if passed is not None and proposal.cost > CLEAR * passed:
                return
            trial = yield proposal
            if trial.passed and not self.keep_going:
                return
            if trial.passed and passed is None:
                passed = proposal.cost

    def _plans(self) -> Iterator[tuple[float, Plan]]:
        """All plans in the order of their predicted cost, made one by one."""
        base, ladders = self.space.total_cost(self.space.fastest()), self.space.ladders
        ops = [op for op, ladder in ladders.items() if len(ladder) > 1]
        fastest = self.space.fastest()
        # Every state has one parent (the last op that moved, moved back by one), so none is met twice.
        heap: list[tuple[float, tuple[int, ...], int]] = [(0.0, (0,) * len(ops), 0)]
        while heap:
            extra, places, last = heapq.heappop(heap)
            plan = fastest.with_(
                {op: ladders[op][place].scheme for op, place in zip(ops, places, strict=True)}
            )
            if plan.names("int8") or not fastest.names("int8"):
                yield base + extra, plan
            for index in range(last, len(ops)):
                ladder, place = ladders[ops[index]], places[index]
                if place + 1 < len(ladder):
                    step = ladder[place + 1].cost - ladder[place].cost
                    heapq.heappush(
                        heap, (extra + step, (*places[:index], place + 1, *places[index + 1 :]), index)
                    )
