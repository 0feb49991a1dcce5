"""What a strategy may choose from: the schemes of every op, what each one costs and how much harm it does.

space = Space.of(ops, harms=harms, cost=cost, plan_probe=plan_probe)
space.fastest()                       # every op in its fastest scheme
space.options("layer.query")          # what that op could be instead, with harm and price
space.plan_harm(plan)                  # label-free harm of a whole plan
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from octune.plan import Op, Plan, Scheme
from octune.search.allocate import Option

__all__ = ["Space"]

# An int8 op is given up for its own sake only if it is clearly slower than fp32 and that matters to the whole
# model: timings of a few microseconds are noisy, int8 ops next to each other save conversions that no
# single-op timing shows, and int8 is smaller.
CLEARLY_SLOWER = 1.5
MATTERS = 0.03
# Less than this is the price of calling a kernel, not of running it: the compiled form does not pay it.
CALL_MS = 0.05
# Dynamic and bf16 must be clearly faster than what they stand in for.
CLEARLY_FASTER = 1.2
# What leaving the fastest scheme costs at least, as a share of the dearest op: for float, and for a repair.
FLOAT_FLOOR, REPAIR_FLOOR = 0.05, 0.005
# What a repair costs at most, and float at least, as a share of the op itself. A repair is a multiplication
# that the compiled form does in passing, and int8 has more to give than a single op's timing shows; a
# repaired op is never dearer than one that was given up.
REPAIR_MOST = FLOAT_LEAST = 0.5
Key = tuple[str, Scheme]


@dataclass(frozen=True)
class Space:
    """The legal schemes of every op. ``harms`` is the harm to the output, ``cost`` milliseconds (or bytes);
    both by (op, scheme).

    ``plan_probe`` measures the harm of a whole plan without labels (see octune.harm.plan_probe); None where
    there is no data for it.
    """

    choices: Mapping[str, tuple[Scheme, ...]]
    harms: Mapping[Key, float] = field(default_factory=dict)
    cost: Mapping[Key, float] = field(default_factory=dict)
    plan_probe: Callable[[Plan], float] | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        ops: Sequence[Op],
        harms: Mapping[Key, float] | None = None,
        cost: Mapping[Key, float] | None = None,
        plan_probe: Callable[[Plan], float] | None = None,
    ) -> Space:
        """The space of all schemes that the ops have."""
        return cls({op.name: op.schemes for op in ops}, harms or {}, cost or {}, plan_probe)

    def harm(self, op: str, scheme: Scheme) -> float:
        """Predicted harm of one op in one scheme; fp32 does none, what was not measured counts as unknown:
        none.
        """
        return self.harms.get((op, scheme), 0.0)

    def milliseconds(self, op: str, scheme: Scheme) -> float:
        """Measured cost of one op in one scheme."""
        return self.cost.get((op, scheme), 0.0)

    def total_harm(self, plan: Plan) -> float:
        """Predicted harm of a plan: errors of different ops are as good as independent, so their squares add
        up.
        """
        return sum(self.harm(op, scheme) for op, scheme in plan.items())

    def total_cost(self, plan: Plan) -> float:
        """Predicted cost of a plan."""
        return sum(self.milliseconds(op, scheme) for op, scheme in plan.items())

    def plan_harm(self, plan: Plan) -> float:
        """Harm of a plan as a whole: measured without labels where that is possible, else predicted."""
        return self.total_harm(plan) if self.plan_probe is None else self.plan_probe(plan)

    # -- the fastest plan ------------------------------------------------------------------------------------

    @cached_property
    def _fastest_plan(self) -> Plan:
        return Plan({op: self._fastest(op, schemes) for op, schemes in self.choices.items()})

    def fastest(self) -> Plan:
        """Every op in its fastest scheme, nothing repaired; among the equally fast ones (range methods), the
        least harmful.
        """
        return self._fastest_plan

    def _fastest(self, op: str, schemes: tuple[Scheme, ...]) -> Scheme:
        # A repair is for an op that needs one: it costs a little, and where nothing is wrong it can do harm.
        quantized = [scheme for scheme in schemes if not scheme.is_float and not scheme.repairs]
        floats = [scheme for scheme in schemes if scheme.is_float] or quantized
        best_float = min(floats, key=lambda s: (self.milliseconds(op, s), s.dtype != "fp32"))
        if not quantized:
            # bf16 by itself is no reason to leave fp32 where int8 is not even possible.
            return next((scheme for scheme in floats if scheme.dtype == "fp32"), best_float)
        static = [scheme for scheme in quantized if scheme.mode != "dynamic"]
        # Static first: the speed of a dynamic scheme hangs on the input.
        kept = (
            quantized
            if not static
            else [s for s in quantized if s.mode == "dynamic"]
            if self._dynamic_wins
            else static
        )
        best = min(kept or static, key=lambda s: self.harm(op, s))
        fp32 = next((scheme for scheme in floats if scheme.dtype == "fp32"), None)
        return fp32 if fp32 is not None and self._not_worth_it(op, best, fp32) else best

    @cached_property
    def _dynamic_wins(self) -> bool:
        """Whether dynamic is clearly faster than static over all ops that can be both. One op's timing is no
        ground for such a decision.
        """
        sums = {"static": 0.0, "dynamic": 0.0}
        for op, schemes in self.choices.items():
            by_mode = {
                s.mode: self.milliseconds(op, s)
                for s in reversed(schemes)
                if s.mode in sums and not s.repairs
            }
            if len(by_mode) == 2:
                sums = {mode: sums[mode] + by_mode[mode] for mode in sums}  # type: ignore[index]
        return 0 < CLEARLY_FASTER * sums["dynamic"] < sums["static"]

    def _not_worth_it(self, op: str, quantized: Scheme, fp32: Scheme) -> bool:
        slow, fast = self.milliseconds(op, quantized), self.milliseconds(op, fp32)
        return slow > CLEARLY_SLOWER * fast > 0 and slow - fast > max(CALL_MS, MATTERS * self._fp32_total)

    @cached_property
    def _fp32_total(self) -> float:
        return sum(ms for (_, scheme), ms in self.cost.items() if scheme.dtype == "fp32")

    # -- what else there is ----------------------------------------------------------------------------------

    def options(self, op: str) -> list[Option]:
        """The ways out for an op, its fastest scheme first: the least harmful of every kernel, with what it
        costs to leave the first.
        """
        first = self.fastest()[op]
        kernels: dict[tuple[object, ...], Scheme] = {}
        for scheme in self.choices[op]:
            key = (scheme.dtype, scheme.mode, scheme.granularity, scheme.repairs)
            if self._known(op, scheme) and (
                key not in kernels or self.harm(op, scheme) < self.harm(op, kernels[key])
            ):
                kernels[key] = scheme
        others = [scheme for scheme in kernels.values() if scheme != first]
        # An op that was left in float for its speed has nowhere to go: what is faster and less harmful is
        # where it is.
        others = (
            []
            if first.is_float
            else [
                scheme for scheme in others if scheme.is_float or self.harm(op, scheme) < self.harm(op, first)
            ]
        )
        return [
            Option(first, self.harm(op, first), 0.0),
            *(Option(s, self.harm(op, s), self.price(op, s)) for s in others),
        ]

    def _known(self, op: str, scheme: Scheme) -> bool:
        """Whether this choice was looked at; where nothing was, every choice is as good."""
        return scheme.is_float or not self.harms or (op, scheme) in self.harms

    def price(self, op: str, scheme: Scheme) -> float:
        """What it costs to have this op in this scheme and not in its fastest one: never nothing, or harmless
        ops would fall for it.

        Timings are put on a coarse grid first, so that a plan does not hang on their noise.
        """
        first = self.fastest()[op]
        if scheme == first:
            return 0.0
        weight = CLEARLY_FASTER if scheme.dtype == "bf16" else 1.0
        own = _snapped(self.milliseconds(op, first))
        extra = weight * _snapped(self.milliseconds(op, scheme)) - own
        if scheme.is_float:
            return max(extra, FLOAT_FLOOR * self._dearest, FLOAT_LEAST * own)
        return max(min(extra, REPAIR_MOST * own) if scheme.repairs else extra, REPAIR_FLOOR * self._dearest)

    @cached_property
    def _dearest(self) -> float:
        return _snapped(max(self.cost.values(), default=0.0)) or 1.0


def _snapped(value: float) -> float:
    """The nearest of a row of numbers that grow by a fifth each."""
    return math.exp2(round(4 * math.log2(value)) / 4) if value > 0 else 0.0
