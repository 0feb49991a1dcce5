"""The way from a plan to float: nested plans, each with one op on a higher rung than the plan before it.

plans = path(space.ladders, space.fastest())
plans[0], plans[-1]                         # the plan it begins with; (nearly) everything in float
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octune.plan import Plan
from octune.search.ladder import Ladder, climb

__all__ = ["first_below", "path"]


def path(ladders: Mapping[str, Ladder], start: Plan) -> list[Plan]:
    """From ``start`` upwards, the move that removes the most harm for its cost first. A plan with nothing in
    int8 is not on it: how fp32 scores is known.
    """
    moves = []
    for op, ladder in ladders.items():
        rung = next((rung for rung in ladder if rung.scheme == start[op]), ladder[-1])
        while (above := climb(ladder, rung)) is not None:
            removed, cost = rung.harm - above.harm, above.cost - rung.cost
            moves.append((-removed / cost, -removed, cost, op, above.scheme))
            rung = above
    plans = [start]
    for *_, op, scheme in sorted(moves, key=lambda move: move[:4]):
        plans.append(plans[-1].with_({op: scheme}))
    return [plan for plan in plans if plan.names("int8")] or [start]


def first_below(
    plan_harm: Callable[[Plan], float], plans: Sequence[Plan], harm: float, low: int, high: int
) -> int:
    """The place of the first plan after ``low`` that does at most this much harm, by bisection; ``high`` if
    none before that does.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if plan_harm(plans[middle]) <= harm else (middle, high)
    return high
