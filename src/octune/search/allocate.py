"""Which op gets which scheme: the least cost within a budget of harm, and how many ops must leave their first scheme.

    allocate({"a": [Option(INT8, harm=0.2, price=0.0), Option(FP32, harm=0.0, price=1.5)]}, budget=0.1)

A knapsack with one choice for each op, solved by SciPy's ``milp``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from octune.plan import Scheme

__all__ = ["Option", "allocate"]

# Good enough: prices are measured to a few percent at best.
GAP = 0.005


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
    usable = {op: [option for option in some if option.harm <= budget] or [_gentlest(some)] for op, some in options.items()}
    able = sum(any(option.scheme.is_float for option in some) for some in usable.values())
    least = sum(min(option.harm for option in some) for some in usable.values())
    if least >= budget or not usable:
        return {op: _gentlest(some).scheme for op, some in options.items()}
    rows = [(op, option) for op, some in usable.items() for option in some]
    harm = np.array([option.harm for _, option in rows]) / budget
    price = np.array([option.price for _, option in rows])
    # Of equal prices the less harmful, by a weight too small to outvote any price.
    objective = price / (price.max() or 1.0) + 1e-6 * harm
    ops = list(options)
    member = csr_array(([1.0] * len(rows), ([ops.index(op) for op, _ in rows], range(len(rows)))), shape=(len(ops), len(rows)))
    is_float = np.array([float(option.scheme.is_float) for _, option in rows])
    found = milp(
        objective,
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(member, 1, 1),
            LinearConstraint(harm, -np.inf, 1.0),
            LinearConstraint(is_float, min(floats, able), np.inf),
        ],
        options={"mip_rel_gap": GAP},
    )
    if found.x is None:
        return {op: _gentlest(some).scheme for op, some in options.items()}
    chosen = {op: option.scheme for (op, option), value in zip(rows, found.x, strict=True) if value > 0.5}
    return {op: chosen[op] for op in ops}


def _gentlest(options: Sequence[Option]) -> Option:
    return min(options, key=lambda option: (option.harm, option.price))
