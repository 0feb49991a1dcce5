"""The default strategy: nested plans lead from the fastest one to float, the move that removes the most harm
for its cost first (path.py). Where to begin on that path is found out without labels (start.py); after a
failure the search jumps ahead by how much harm must go, and between a plan that failed and one that passed it
bisects. It costs 1 + log2(number of ops) evaluations at most, usually one, and as many again if nothing
passes.

docs/strategies.md tells it in full, docs/search.md what every rule is good for.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

from octune.cost.noise import clearly_faster
from octune.plan import Plan, Scheme
from octune.result import Trial
from octune.search.base import Proposal, Search, Strategy
from octune.search.ladder import Ladder
from octune.search.path import first_below, path
from octune.search.start import begin

__all__ = ["Auto"]

# After a failure this many times more harm is removed than if the loss were proportional to it.
CAUTION = 2.0
# With this share of the ops in int8 little is left to win: no third evaluation is spent on it.
NEARLY_ALL = 0.8


class Auto(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        start, fastest = begin(self.space), self.space.fastest()
        self._quantizable = [op for op in fastest if not fastest[op].is_float]
        self._limit = max(3, 1 + int(math.log2(max(1, len(self._quantizable)))))
        ladders, plans, at = start.ladders, start.plans, start.at
        # Plans up to `low` fail and plans from `high` on pass, as far as is known.
        low, high, best, target = (0 if at else -1), len(plans), None, math.inf
        while high - low > 1 and self._can_evaluate(best):
            trial = yield Proposal(plans[at], self._reason(plans[at]))
            if trial.passed:
                high, best = at, trial
            elif best is None and trial.plan.names("bf16"):  # it does not run here, or does not help
                ladders = {op: _without_bf16(ladder) for op, ladder in ladders.items()}
                plans = path(ladders, plans[0])
                low, high = 0, len(plans)
            else:
                low = at
            if best is None:
                target = min(target, self.space.plan_harm(trial.plan)) / (CAUTION * _excess(trial))
            else:
                target = math.sqrt(self._harm(plans, low) * self._harm(plans, high))
            at = self._between(plans, low, high, target)
        if best is None:
            best = yield from self._a_few_alone(ladders, plans)
        if best is not None:
            yield from self._give_back(ladders, best, math.inf if low < 0 else self._harm(plans, low))

    def _can_evaluate(self, best: Trial | None) -> bool:
        """Whether one more evaluation may be spent here. The last one of the limit is left for the compiled
        form of a plan that passes or, if none does, for a few ops alone.
        """
        if best is None:
            return len(self._told) < self._limit - 1
        fallen = len(self._fallen(best.plan))
        enough = len(self._told) > 1 and fallen <= (1 - NEARLY_ALL) * len(self._quantizable)
        return self.keep_going or (fallen > 0 and not enough and len(self._told) < self._limit - 1)

    def _fallen(self, plan: Plan) -> list[str]:
        return [op for op in self._quantizable if plan[op].is_float]

    def _harm(self, plans: list[Plan], place: int) -> float:
        return self.space.plan_harm(plans[max(place, 0)])

    def _between(self, plans: list[Plan], low: int, high: int, harm: float) -> int:
        """The first plan between two places that does at most this much harm; the middle where harm says
        nothing.
        """
        return (
            first_below(self.space.plan_harm, plans, harm, low, high - 1) if harm > 0 else (low + high) // 2
        )

    def _a_few_alone(
        self, ladders: Mapping[str, Ladder], plans: list[Plan]
    ) -> Generator[Proposal, Trial, Trial | None]:
        """Nothing passed, so what is known of harm is wrong: everything in float except a few ops at a time,
        those that fall last on the path first.
        """
        floats = Plan({op: ladder[-1].scheme for op, ladder in ladders.items()})
        falls = {op: sum(not plan[op].is_float for plan in plans) for op in self._quantizable}
        order = sorted(self._quantizable, key=lambda op: (-falls[op], op))
        few = max(1, len(order) // 8)
        for first in range(0, len(order), few)[: self._limit + 1]:
            plan = floats.with_({op: _gentlest(ladders[op]) for op in order[first : first + few]})
            if plan not in self._told:
                trial = yield Proposal(plan, "a few ops alone")
                if trial.passed:
                    return trial
        return None

    def _give_back(self, ladders: Mapping[str, Ladder], best: Trial, failing: float) -> Search:
        """Single moves that should make a plan faster, as long as evaluations may be spent. What one plan
        cannot bear, a better one may; what does as much harm as a plan that failed is not tried.
        """
        improved = True
        while improved:
            improved = False
            for op, scheme in self._single_moves(ladders, best.plan):
                plan = best.plan.with_({op: scheme})
                if not self._can_evaluate(best):
                    return
                if plan in self._told or (self.space.plan_probe and self.space.plan_harm(plan) >= failing):
                    continue
                trial = yield Proposal(plan, f"{op} in {scheme}")
                if trial.passed:
                    best, improved = trial, True

    def _single_moves(self, ladders: Mapping[str, Ladder], plan: Plan) -> list[tuple[str, Scheme]]:
        """Ops that fell back into int8, the most gain for the least risk first; with time to spend, also
        repairs off again, and what single timings say and the fastest plan did not follow.
        """

        def gain_per_risk(op: str) -> float:
            cost = next((rung.cost for rung in ladders[op] if rung.scheme == plan[op]), 0.0)
            return cost / max(ladders[op][0].harm, 1e-12)

        by_gain = sorted(plan, key=lambda op: (-gain_per_risk(op), op))
        fallen = set(self._fallen(plan))
        moves = [(op, _gentlest(ladders[op])) for op in by_gain if op in fallen]
        if self.keep_going:
            moves += [(op, ladders[op][0].scheme) for op in by_gain if plan[op].repairs]
            for op, schemes in self.space.choices.items():
                now, cost = self.space.cost(op, plan[op]), {s: self.space.cost(op, s) for s in schemes}
                quicker = [s for s in schemes if clearly_faster(cost[s], now) and not s.repairs]
                if quicker:
                    moves.append((op, min(quicker, key=lambda s: (cost[s], self.space.harm(op, s)))))
        return moves

    def _reason(self, plan: Plan) -> str:
        repaired, floats = sum(bool(scheme.repairs) for scheme in plan.values()), len(self._fallen(plan))
        parts = [f"{repaired} repaired"] * bool(repaired) + [f"{floats} in float"] * bool(floats)
        return f"of the most harmful ops {' and '.join(parts)}" if parts else "every op in its fastest scheme"


def _without_bf16(ladder: Ladder) -> Ladder:
    return tuple(rung for rung in ladder if rung.scheme.dtype != "bf16") or ladder


def _gentlest(ladder: Ladder) -> Scheme:
    """The least harmful int8 of an op that can be int8."""
    return [rung.scheme for rung in ladder if not rung.scheme.is_float][-1]


def _excess(trial: Trial) -> float:
    """How many times more was lost than is allowed; two if that cannot be said. A loss within what is allowed
    fails too where it is not certain enough.
    """
    verdict = trial.verdict
    return max(1.0, verdict.drop / verdict.allowed) if verdict is not None and verdict.allowed > 0 else 2.0
