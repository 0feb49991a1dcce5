"""Ops that are harmless one by one and harmful together.

    for group in interacting(plan_probe, plan, alone):
        group.ops, group.harm, group.alone

Found by delta debugging on the label-free harm of parts of a plan: about log2(number of ops) forward passes
for each member of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octune.plan import Plan

__all__ = ["Group", "interacting"]

# The whole must be this many times the sum of its parts to be worth a search: single harms are themselves
# known to a factor of two.
RATIO = 4.0
PROBES = 24


@dataclass(frozen=True, slots=True)
class Group:
    """Ops whose ``harm`` in int8 together is much more than what each does ``alone``, added up."""

    ops: tuple[str, ...]
    harm: float
    alone: float


def interacting(
    plan_probe: Callable[[Plan], float],
    plan: Plan,
    alone: Mapping[str, float],
    *,
    floor: float = 0.0,
    probes: int = PROBES,
) -> list[Group]:
    """The interacting groups of a plan, the most harmful first; none where harms add up. Costs at most
    ``probes`` forward passes.

    ``alone`` is the harm of every op by itself. A whole below ``floor`` does not matter, however it comes
    about.
    """
    left = probes

    def measure(ops: Sequence[str]) -> float:
        nonlocal left
        left -= 1
        return plan_probe(Plan({op: plan[op] for op in ops}))

    groups: list[Group] = []
    rest = [op for op in plan if plan[op].dtype != "fp32"]
    while len(rest) > 1 and left > 0:
        whole = measure(rest)
        if whole <= max(floor, RATIO * sum(alone[op] for op in rest)):
            break
        found = _smallest(measure, rest, whole / RATIO, lambda: left > 0)
        groups.append(Group(tuple(found), measure(found), sum(alone[op] for op in found)))
        rest = [op for op in rest if op not in found]
    return groups


def _smallest(
    measure: Callable[[Sequence[str]], float], ops: list[str], goal: float, may: Callable[[], bool]
) -> list[str]:
    """A small set of ops that does ``goal`` harm together: each member found by bisection, as the last one
    that a prefix needs.
    """
    found: list[str] = []
    rest = ops
    while rest and may():
        few, enough = 0, len(rest)
        while enough - few > 1 and may():
            middle = (few + enough) // 2
            if measure([*rest[:middle], *found]) >= goal:
                enough = middle
            else:
                few = middle
        found.append(rest[enough - 1])
        rest = rest[: enough - 1]
        if measure(found) >= goal:
            break
    return sorted(found, key=ops.index)
