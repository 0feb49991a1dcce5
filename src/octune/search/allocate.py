"""Which op gets which scheme: the least cost within a budget of harm, and how many ops must leave their first
scheme.

    allocate({"a": [Option(INT8, harm=0.2, price=0.0), Option(FP32, harm=0.0, price=1.5)]}, budget=0.1)

A knapsack with one choice for each op, solved by dynamic programming over the budget in small steps. (SciPy's
``milp`` would do, but for a line that HiGHS 1.12 prints on standard output now and then, where programs read
our JSON.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octune.plan import Scheme

__all__ = ["Option", "allocate"]

# Steps of the budget for each op: harm is rounded up to them, so at most a hundredth of the budget is lost.
STEPS = 100
TIE = 1e-6
IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Option:
    """A scheme of one op: the harm it does, and the price of choosing it."""

    scheme: Scheme
    harm: float
    price: float


def allocate(options: Mapping[str, Sequence[Option]], budget: float, floats: int = 0) -> dict[str, Scheme]:
    """The cheapest choice whose harm stays within ``budget``, with at least ``floats`` ops that are not int8.

    Where that cannot be (some ops have no float scheme), the least harmful choice of all.
    """
    usable = {
        op: [option for option in some if option.harm <= budget] or [_gentlest(some)]
        for op, some in options.items()
    }
    chosen = _cheapest(usable, budget)
    if chosen is None:
        return {op: _gentlest(some).scheme for op, some in options.items()}
    # An op that leaves int8 does less harm, so the budget holds whichever ops are made to: those that pay the
    # least for it.
    ways_out = {
        op: min((o for o in some if o.scheme.is_float), key=_by_price, default=None)
        for op, some in usable.items()
    }
    extra = {
        op: out.price - chosen[op].price
        for op, out in ways_out.items()
        if out is not None and not chosen[op].scheme.is_float
    }
    missing = max(0, floats - sum(option.scheme.is_float for option in chosen.values()))
    for op in sorted(extra, key=lambda op: (extra[op], -chosen[op].harm, op))[:missing]:
        chosen[op] = ways_out[op] or chosen[op]
    return {op: option.scheme for op, option in chosen.items()}


def _cheapest(options: Mapping[str, Sequence[Option]], budget: float) -> dict[str, Option] | None:
    """The cheapest choice within the budget, None if there is none: one op after the other, for every part of
    the budget.
    """
    if not budget > 0:
        return None
    steps = STEPS * len(options)
    top = max((option.price for some in options.values() for option in some), default=0.0) or 1.0
    least = np.zeros(steps + 1)  # what the ops so far cost at least, by how much of the budget they may use
    picks: list[IntArray] = []
    for some in options.values():
        costs = np.full((len(some), steps + 1), np.inf)
        for row, option in zip(costs, some, strict=True):
            used = _steps(option, budget, steps)
            # Of equal prices the less harmful, by a weight too small to outvote any price.
            row[used:] = least[: steps + 1 - used] + option.price / top + TIE * option.harm / budget
        picks.append(costs.argmin(axis=0))
        least = costs.min(axis=0)
    if not math.isfinite(least[-1]):
        return None
    chosen: dict[str, Option] = {}
    left = steps
    for (op, some), pick in zip(reversed(list(options.items())), reversed(picks), strict=True):
        chosen[op] = some[pick[left]]
        left -= _steps(chosen[op], budget, steps)
    return {op: chosen[op] for op in options}


def _steps(option: Option, budget: float, steps: int) -> int:
    return min(steps + 1, math.ceil(option.harm / budget * steps)) if option.harm > 0 else 0


def _by_price(option: Option) -> tuple[float, float]:
    return option.price, option.harm


def _gentlest(options: Sequence[Option]) -> Option:
    return min(options, key=lambda option: (option.harm, option.price))
