"""The default strategy: repair before the first evaluation, leave as few ops as will do in float, and ask for
few evaluations.

1. Look. Every op in its fastest scheme. While the predicted harm is more than comfortable, the most harmful
   ops are repaired, if a repair takes away three quarters of their harm; the plan as a whole is measured
   without labels, and must have become better by it. Where the whole is much worse than the sum of its ops,
   the ops that are harmful together are found, and believed to be.
2. Evaluate. Passes: done.
3. Tighten. How far the score fell says how much harm must go (twice as much as linear, at least three
   quarters). The cheapest plan within that budget is made (a knapsack over fastest, repaired, dynamic, bf16,
   fp32), measured as a whole, and evaluated. With every failure the number of ops in float grows
   geometrically, and ops that are still int8 are suspected more.
4. Give back. Between what passed and what failed, the budget is bisected; then single ops, the most time
   saved for the least risk first. A plan that is nearly all int8 is given one more evaluation, others what is
   left.

Costs at most 1 + log2(number of ops) evaluations (3 for a handful of ops), usually one; if nothing passes, as
many again to find anything that does. With time to spend (``keep_going``) it goes on as long as a plan is
there that should be faster. Scores are noisy and not monotonic, so a plan is only ever accepted for its own
score.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

from octune.harm import Group, interacting
from octune.plan import Plan, Scheme
from octune.result import Trial
from octune.search.base import Proposal, Search, Strategy
from octune.search.belief import Belief

__all__ = ["Auto", "Start", "first_plan"]

# Harm is squared change of the output over the output's variance. Below the first number a loss of 1 % has
# not been seen; above the last a plan need not be evaluated to know that it fails, and one in the middle is
# tried in its place.
COMFORTABLE, PLAUSIBLE, HOPELESS = 2e-3, 2e-2, 0.5
# A repair must take away three quarters of an op's harm; repairs together must halve the harm of the plan as
# a whole.
HELPS, HELPS_TOGETHER = 0.25, 0.5
LEAST, MOST = 4.0, 1000.0  # by how much the harm shrinks after a failure
WORTH = 0.01  # of the fp32 model's time: what giving back must save
# With this share of the ops in int8 little is left to win: one more evaluation, and no third.
NEARLY_ALL, ENOUGH = 0.8, 2

Try = Generator[Proposal, Trial, Trial]


class Start:
    """Where ``auto`` begins: a plan, and what was found out on the way to it."""

    def __init__(self, plan: Plan, belief: Belief, groups: list[Group]) -> None:
        self.plan, self.belief, self.groups = plan, belief, groups


def first_plan(belief: Belief) -> Start:
    """What to evaluate first: fastest, repaired where it stands out. No labels are needed for that."""
    space, groups = belief.space, list[Group]()
    plan = _repaired(belief, belief.fastest)
    if space.plan_probe is not None:
        alone = {op: space.harm(op, scheme) for op, scheme in plan.items()}
        groups = interacting(space.plan_probe, plan, alone, floor=COMFORTABLE)
        if groups:
            belief.correct(groups)
            plan = _repaired(belief, plan)
        if space.plan_probe(plan) > HOPELESS:
            plan = belief.cheapest(PLAUSIBLE)
    return Start(plan, belief, groups)


def _repaired(belief: Belief, plan: Plan) -> Plan:
    """The plan with its most harmful ops repaired, until harm is comfortable; or as it was, if that does not
    help the whole.
    """
    total = belief.predicted(plan)
    repaired = plan
    for op in sorted(plan, key=lambda op: (-belief.harm(op, plan[op]), op)):
        harm = belief.harm(op, plan[op])
        if total <= COMFORTABLE or harm < total / len(plan):  # it does not stand out of what is left
            break
        best = min(
            (option for option in belief.options(op) if option.scheme.repairs),
            key=lambda option: option.harm,
            default=None,
        )
        if best is not None and best.harm <= HELPS * harm:
            repaired = repaired.with_({op: best.scheme})
            total -= harm - best.harm
    if repaired == plan or belief.space.plan_harm(repaired) <= HELPS_TOGETHER * belief.space.plan_harm(plan):
        return repaired
    return plan


class Auto(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        belief = Belief(self.space)
        start = first_plan(belief)
        self._left = self._limit = max(3, 1 + int(math.log2(max(1, len(belief.quantizable)))))
        trial = yield from self._try(
            start.plan, self._words(belief, start.plan, "every op in its fastest scheme")
        )
        ceiling = self.space.plan_harm(belief.fastest)
        if not trial.passed:
            ceiling = self.space.plan_harm(trial.plan)
            trial = yield from self._tighten(belief, trial)
        fallen = any(scheme.is_float and not belief.fastest[op].is_float for op, scheme in trial.plan.items())
        if trial.passed and (fallen or self.keep_going):
            yield from self._give_back(belief, trial, ceiling)

    def _try(self, plan: Plan, reason: str) -> Try:
        self._left -= 1
        return (yield Proposal(plan, reason))

    # -- down ------------------------------------------------------------------------------------------------

    def _tighten(self, belief: Belief, trial: Trial) -> Try:
        """Plans with less and less harm, until one passes or there are no more tries. Returns the last
        trial.
        """
        target = math.inf
        for step in range(1, self._limit):
            if trial.plan.names("bf16"):
                belief.exact = True
            known = min(target, self.space.plan_harm(trial.plan))
            if step > 1 or known <= COMFORTABLE:
                belief.suspect(trial.plan)
                known = max(known, min(target, belief.predicted(trial.plan)))
            target = (known or 1.0) / min(MOST, max(LEAST, 2 * _excess(trial)))
            plan = belief.cheapest(target, self._floats(belief, step))
            if not set(plan.names("int8")) & set(belief.quantizable):
                # how fp32 scores is known already
                plan = belief.nearly_float(max(1, len(belief.quantizable) // 8))
            if plan in self._told:
                break
            trial = yield from self._try(plan, self._words(belief, plan, "less harm"))
            if trial.passed:
                return trial
        return (yield from self._last_resort(belief, trial))

    def _last_resort(self, belief: Belief, trial: Trial) -> Try:
        """Nothing passed, so what is known of harm is wrong: a few ops in int8 at a time, the most promising
        ones first.
        """
        few = max(1, len(belief.quantizable) // 8)
        for step in range(self._limit + 1):
            plan = belief.nearly_float(few, skip=few * step)
            if plan in self._told or not set(plan.names("int8")) & set(belief.quantizable):
                continue
            trial = yield from self._try(plan, self._words(belief, plan, "a few ops alone"))
            if trial.passed:
                break
        return trial

    def _floats(self, belief: Belief, step: int) -> int:
        """How many ops must be in float after that many failures: from none to nearly all, geometrically."""
        count, last = len(belief.quantizable), self._limit - 1
        most = min(count - 1, math.ceil(7 * count / 8))
        if step == 1 and last > 1:
            return 0
        return round(most ** ((step - 1) / (last - 1))) if last > 1 else most

    # -- up again --------------------------------------------------------------------------------------------

    def _give_back(self, belief: Belief, best: Trial, ceiling: float) -> Search:
        """Look for something faster that passes too. One try is left for the compiled form, unless there is
        time to spend.
        """
        floor = self.space.plan_harm(best.plan)
        while self._may(belief, best.plan) and floor < ceiling:
            plan = self._between(belief, best.plan, math.sqrt(max(floor, 1e-12) * ceiling))
            if plan is None or not floor < self.space.plan_harm(plan) < ceiling:
                break
            trial = yield from self._try(plan, self._words(belief, plan, "a part given back"))
            if trial.passed:
                best, floor = trial, self.space.plan_harm(plan)
            else:
                ceiling = self.space.plan_harm(plan)
        improved = True
        # a change that a plan could not bear, a better one may; what was tried is not tried again
        while improved:
            improved = False
            for op, scheme in list(self._singles(belief, best.plan)):
                plan = best.plan.with_({op: scheme})
                if not self._may(belief, best.plan):
                    return
                if plan in self._told or (
                    self.space.plan_probe is not None and self.space.plan_harm(plan) >= ceiling > floor
                ):
                    continue
                trial = yield from self._try(plan, f"{op} in {scheme}")
                if trial.passed:
                    best, improved = trial, True

    def _may(self, belief: Belief, plan: Plan) -> bool:
        """Whether one more evaluation may be spent on a plan that passes."""
        if self.keep_going:
            return True
        share = sum(not plan[op].is_float for op in belief.quantizable) / max(1, len(belief.quantizable))
        return self._left > 1 and (share < NEARLY_ALL or self._limit - self._left < ENOUGH)

    def _between(self, belief: Belief, plan: Plan, target: float) -> Plan | None:
        """The cheapest plan of about that harm in which no op is slower than in this one; None if it saves
        nothing to speak of.
        """
        found = belief.cheapest(
            target, allowed=lambda op, option: option.price <= self.space.price(op, plan[op])
        )
        gained = belief.price(plan) - belief.price(found)
        freed = len(found.names("int8")) - len(plan.names("int8"))
        total = self.space.total_cost(Plan({op: Scheme.fp32() for op in plan}))
        worth = freed > 0 or (self.keep_going and gained > WORTH * total)
        return found if found not in self._told and gained > 0 and worth else None

    def _singles(self, belief: Belief, plan: Plan) -> Iterator[tuple[str, Scheme]]:
        """Single changes that should make the plan faster: fallen ops first, the most time saved for the
        least risk.
        """
        fallen = [op for op, scheme in plan.items() if scheme.is_float and not belief.fastest[op].is_float]
        repaired = [op for op, scheme in plan.items() if scheme.repairs]
        for op in sorted(fallen, key=lambda op: (-self._saving(belief, plan, op), op)):
            yield (
                op,
                min((o for o in belief.options(op) if not o.scheme.is_float), key=lambda o: o.harm).scheme,
            )
        if not self.keep_going:
            return
        for op in sorted(repaired, key=lambda op: (-self._saving(belief, plan, op), op)):
            yield op, belief.fastest[op]
        for op, schemes in self.space.choices.items():
            # What single timings say and the choice of the fastest plan did not follow, because they are
            # noisy.
            now = self.space.milliseconds(op, plan[op])
            quicker = [
                s for s in schemes if 0 < self.space.milliseconds(op, s) < 0.95 * now and not s.repairs
            ]
            if quicker:
                yield op, min(quicker, key=lambda s: (self.space.milliseconds(op, s), self.space.harm(op, s)))

    def _saving(self, belief: Belief, plan: Plan, op: str) -> float:
        return self.space.price(op, plan[op]) / max(belief.harm(op, belief.fastest[op]), 1e-12)

    @staticmethod
    def _words(belief: Belief, plan: Plan, plain: str) -> str:
        repaired = sum(bool(scheme.repairs) for scheme in plan.values())
        floats = sum(scheme.is_float and not belief.fastest[op].is_float for op, scheme in plan.items())
        parts = [f"{repaired} repaired"] * bool(repaired) + [f"{floats} in float"] * bool(floats)
        return f"of the most harmful ops {' and '.join(parts)}" if parts else plain


def _excess(trial: Trial) -> float:
    """How many times more was lost than is allowed; two if that cannot be said."""
    verdict = trial.verdict
    return verdict.drop / verdict.allowed if verdict is not None and verdict.allowed > 0 else 2.0
