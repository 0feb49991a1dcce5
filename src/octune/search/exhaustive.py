"""All plans there are, the fastest first by predicted cost: the first one that passes is the best one there
is.

Every op may be in its fastest scheme, repaired, dynamic, bf16 or fp32, so there are up to 5^n plans for n
ops: this is for models with a handful of ops, and a yardstick for other strategies. It ends with
``max_trials`` or ``timeout`` where there are more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from octune.plan import Plan
from octune.search.base import Proposal, Search, Strategy
from octune.search.rungs import rungs

__all__ = ["Exhaustive"]

# With time to spend: plans that are predicted to be this much slower than the first one that passed may still
# turn out faster.
DOUBT = 1.05


class Exhaustive(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        passed: float | None = None
        for cost, plan in self._plans():
            if passed is not None and cost > DOUBT * passed:
                return
            trial = yield Proposal(plan, f"the next fastest plan, predicted {cost:.4g}")
            if trial.passed and not self.keep_going:
                return
            if trial.passed and passed is None:
                passed = cost

    def _plans(self) -> Iterator[tuple[float, Plan]]:
        """All plans in the order of their predicted cost, made one by one."""
        base = self.space.total_cost(self.space.fastest())
        ladders = {
            op: sorted(
                {scheme: self.space.price(op, scheme) for scheme in rungs(self.space, op).values()}.items(),
                key=lambda row: row[1],
            )
            for op in self.space.choices
        }
        ops = [op for op, ladder in ladders.items() if len(ladder) > 1]
        fixed = Plan({op: ladder[0][0] for op, ladder in ladders.items()})
        # Every state has one parent (the last op that moved, moved back by one), so none is met twice.
        heap: list[tuple[float, tuple[int, ...], int]] = [(0.0, (0,) * len(ops), 0)]
        while heap:
            price, places, last = heapq.heappop(heap)
            plan = fixed.with_({op: ladders[op][place][0] for op, place in zip(ops, places, strict=True)})
            if plan.names("int8") or not fixed.names("int8"):
                yield base + price, plan
            for index in range(last, len(ops)):
                ladder, place = ladders[ops[index]], places[index]
                if place + 1 < len(ladder):
                    step = ladder[place + 1][1] - ladder[place][1]
                    heapq.heappush(
                        heap, (price + step, (*places[:index], place + 1, *places[index + 1 :]), index)
                    )
