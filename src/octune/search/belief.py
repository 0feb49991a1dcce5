"""What is believed about the harm of ops: what the probe measured, corrected by what plan probes and
evaluations say.

    belief = Belief(space)
    belief.correct(groups)                 # ops that are worse together than alone
    belief.suspect(failing_plan)           # it failed, and nothing that is known explains it
    belief.cheapest(target)                # the cheapest plan with at most that much harm, looked at as a
                                           whole

A correction is an extra harm of an op's fastest scheme. Its other schemes have as much less of it as they do
less harm by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octune.harm import Group
from octune.plan import Plan, Scheme
from octune.search.allocate import Option, allocate
from octune.search.space import Space

__all__ = ["Belief"]

# How often a plan is made anew because the whole is worse than the sum, and how much worse it may be.
LOOKS = 4
TOLERATED = 2.0
# As a share of what is known: enough to break ties and to end with, not enough to outvote what was measured.
SUSPICION = 0.1
# What is left of an unexplained harm in bf16, where nothing was measured.
BF16_SHARE = 0.01


class Belief:
    """Harms of a space, with corrections."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.fastest = space.fastest()
        self.quantizable = [op for op, scheme in self.fastest.items() if not scheme.is_float]
        self.exact = False  # True: bf16 did not help, or does not run here, so float is fp32
        self._extra: dict[str, float] = {}
        self._options = {op: space.options(op) for op in space.choices}

    def harm(self, op: str, scheme: Scheme) -> float:
        """Believed harm of one op in one scheme."""
        measured, extra = self.space.harm(op, scheme), self._extra.get(op, 0.0)
        if extra == 0.0 or scheme.dtype == "fp32":
            return measured
        plain = self.space.harm(op, self.fastest[op])
        share = min(1.0, measured / plain) if plain > 0 else BF16_SHARE if scheme.dtype == "bf16" else 1.0
        return measured + share * extra

    def predicted(self, plan: Plan) -> float:
        """Believed harm of a plan."""
        return sum(self.harm(op, scheme) for op, scheme in plan.items())

    def options(self, op: str) -> list[Option]:
        """The ways out for an op, with believed harms."""
        some = [
            option
            for option in self._options[op]
            if not (self.exact and option.scheme.dtype == "bf16" and op in self.quantizable)
        ]
        return [Option(option.scheme, self.harm(op, option.scheme), option.price) for option in some]

    def price(self, plan: Plan) -> float:
        """What a plan costs more than the fastest one."""
        return sum(self.space.price(op, scheme) for op, scheme in plan.items())

    def correct(self, groups: Sequence[Group]) -> None:
        """Share out what a group does together, and its ops do not do alone."""
        for group in groups:
            for op in group.ops:
                self._extra[op] = self._extra.get(op, 0.0) + max(0.0, group.harm - group.alone) / len(
                    group.ops
                )

    def suspect(self, plan: Plan) -> None:
        """This plan failed for no known reason: a little harm that nobody saw is shared out over all that is
        int8 in it.
        """
        suspects = [op for op, scheme in plan.items() if not scheme.is_float]
        unseen = SUSPICION * (self.predicted(plan) or 1.0)
        for op in suspects:
            self._extra[op] = self._extra.get(op, 0.0) + unseen / len(suspects)

    def nearly_float(self, count: int, skip: int = 0) -> Plan:
        """All in float but ``count`` ops that save the most time for the least harm (behind ``skip`` of
        them), as gentle as int8 gets.
        """
        floats = {
            op: min((o for o in self.options(op) if o.scheme.is_float), key=lambda o: o.price, default=None)
            for op in self.quantizable
        }
        gentle = {
            op: min((o for o in self.options(op) if not o.scheme.is_float), key=lambda o: o.harm)
            for op in self.quantizable
        }
        worth = {
            op: 0.0 if out is None else (out.price - gentle[op].price) / max(gentle[op].harm, 1e-12)
            for op, out in floats.items()
        }
        kept = set(sorted(self.quantizable, key=lambda op: (-worth[op], op))[skip : skip + count])
        return self.fastest.with_(
            {op: gentle[op].scheme if op in kept or out is None else out.scheme for op, out in floats.items()}
        )

    def cheapest(
        self, target: float, floats: int = 0, allowed: Callable[[str, Option], bool] = lambda op, option: True
    ) -> Plan:
        """The cheapest plan whose harm as a whole is about ``target`` at most, with at least ``floats`` ops
        not in int8.
        """
        options = {
            op: [option for option in self.options(op) if allowed(op, option)] for op in self.space.choices
        }
        # Ops that never were int8 are no float that was chosen.
        floats += sum(scheme.is_float for scheme in self.fastest.values())
        budget = target
        for _ in range(LOOKS):
            plan = Plan(allocate(options, budget, floats))
            measured = self.space.plan_harm(plan)
            if measured <= TOLERATED * target:
                break
            budget *= min(0.5, target / measured)
        return plan
