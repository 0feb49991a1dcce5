"""Where ``auto`` begins, found out without labels: repair what stands out, and what is harmful together.

start = begin(space)
start.plans[start.at]               # the first plan to evaluate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octune.harm import Group, interacting
from octune.plan import Plan
from octune.search.ladder import Ladder, raised
from octune.search.path import first_below, path
from octune.search.space import Space

__all__ = ["COMFORTABLE", "HOPELESS", "Start", "begin", "outlook"]

# Harm is squared change of the output over the output's variance. Below the first number a loss of 1 % has
# not been seen; above the last a plan need not be evaluated to know that it fails, and the first one on the
# way below the middle is tried in its place.
COMFORTABLE, PLAUSIBLE, HOPELESS = 2e-3, 2e-2, 0.5
# What a repair leaves of the harm at most: of its op's, and all repairs together of the whole plan's.
HELPS = 0.5

Outlook = Literal["comfortable", "open", "hopeless"]


def outlook(harm: float) -> Outlook:
    """What a plan of this harm can hope for."""
    return "comfortable" if harm <= COMFORTABLE else "open" if harm <= HOPELESS else "hopeless"


@dataclass(frozen=True)
class Start:
    """The nested plans on the way to float and the place of the first one worth an evaluation, with what was
    found out: ladders that know of the ``groups`` of ops that are harmful together.
    """

    plans: list[Plan]
    at: int
    ladders: Mapping[str, Ladder]
    groups: tuple[Group, ...] = ()

    @property
    def plan(self) -> Plan:
        """The first plan to evaluate."""
        return self.plans[self.at]


def begin(space: Space) -> Start:
    """The fastest plan, repaired where that helps; further up only if it would be hopeless."""
    ladders, groups = space.ladders, list[Group]()
    plan = _repaired(space, ladders, space.fastest())
    if space.plan_probe is not None:
        alone = {op: space.harm(op, scheme) for op, scheme in plan.items()}
        quiet = Plan({op: plan[op] for op, harm in alone.items() if harm <= COMFORTABLE})
        groups = interacting(space.plan_probe, quiet, alone, floor=COMFORTABLE)
        if groups:
            ladders = _blamed(ladders, groups)
            plan = _repaired(space, ladders, plan)
    plans, at = path(ladders, plan), 0
    if space.plan_probe is not None and outlook(space.plan_harm(plan)) == "hopeless":
        at = first_below(space.plan_harm, plans, PLAUSIBLE, 0, len(plans) - 1)
    return Start(plans, at, ladders, tuple(groups))


def _blamed(ladders: Mapping[str, Ladder], groups: list[Group]) -> dict[str, Ladder]:
    """What a group does together, and its ops do not do alone, is shared out among them."""
    extra = {op: max(0.0, group.harm - group.alone) / len(group.ops) for group in groups for op in group.ops}
    return {op: raised(ladder, extra[op]) if op in extra else ladder for op, ladder in ladders.items()}


def _repaired(space: Space, ladders: Mapping[str, Ladder], plan: Plan) -> Plan:
    """The plan with its most harmful ops repaired, until harm is comfortable; or as it was, if that does not
    help the whole.
    """
    now = {
        op: next((r for r in ladders[op] if r.scheme == scheme), ladders[op][0])
        for op, scheme in plan.items()
    }
    total = sum(rung.harm for rung in now.values())
    changes = {}
    for op, rung in sorted(now.items(), key=lambda item: (-item[1].harm, item[0])):
        if total <= COMFORTABLE or rung.harm < total / len(plan):  # it does not stand out from what is left
            break
        repair = next((r for r in ladders[op] if r.kind == "repaired" and r.harm < HELPS * rung.harm), None)
        if repair is not None:
            changes[op] = repair.scheme
            total -= rung.harm - repair.harm
    repaired = plan.with_(changes)
    helps = not changes or space.plan_harm(repaired) < HELPS * space.plan_harm(plan)
    return repaired if helps else plan
