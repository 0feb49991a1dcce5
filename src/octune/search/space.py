"""What a strategy may choose from: the schemes of every op, what each one costs and how much harm it does.

space = Space.of(ops, damage=damage, cost=cost)
space.fastest()                       # every op in its fastest scheme
space.chain()                         # from there to all float, the most harm for the least time first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from octune.plan import Op, Plan, Scheme

__all__ = ["Space", "Switch"]

# An int8 op is given up for its own sake only if it is clearly slower than fp32 and that matters to the whole model: timings of a
# few microseconds are noisy, int8 ops next to each other save conversions that no single-op timing shows, and int8 is smaller.
CLEARLY_SLOWER = 1.2
MATTERS = 0.005
# A repair must take away at least three quarters of an op's harm.
HELPS = 0.25
Key = tuple[str, Scheme]


@dataclass(frozen=True, slots=True)
class Switch:
    """One step of a chain: this op moves to this scheme."""

    op: str
    scheme: Scheme
    relief: float


@dataclass(frozen=True)
class Space:
    """The legal schemes of every op. ``damage`` is the harm to the output, ``cost`` milliseconds; both by (op, scheme)."""

    choices: Mapping[str, tuple[Scheme, ...]]
    damage: Mapping[Key, float] = field(default_factory=dict)
    cost: Mapping[Key, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Sequence[Op], damage: Mapping[Key, float] | None = None, cost: Mapping[Key, float] | None = None) -> Space:
        """The space of all schemes that the ops have."""
        return cls({op.name: op.schemes for op in ops}, damage or {}, cost or {})

    def harm(self, op: str, scheme: Scheme) -> float:
        """Predicted harm of one op in one scheme; fp32 does none, what was not measured counts as unknown: none."""
        return self.damage.get((op, scheme), 0.0)

    def milliseconds(self, op: str, scheme: Scheme) -> float:
        """Measured cost of one op in one scheme."""
        return self.cost.get((op, scheme), 0.0)

    def total_harm(self, plan: Plan) -> float:
        """Predicted harm of a plan: errors of different ops are as good as independent, so their squares add up."""
        return sum(self.harm(op, scheme) for op, scheme in plan.items())

    def fastest(self) -> Plan:
        """Every op in its fastest scheme; among the equally fast ones (range methods), the least harmful."""
        return Plan({op: self._fastest(op, schemes) for op, schemes in self.choices.items()})

    def _fastest(self, op: str, schemes: tuple[Scheme, ...]) -> Scheme:
        # A repair is for an op that needs one: it costs a little, and where nothing is wrong it can do harm.
        quantized = [scheme for scheme in schemes if not scheme.is_float and not scheme.repairs]
        floats = [scheme for scheme in schemes if scheme.is_float] or quantized
        best_float = min(floats, key=lambda s: (self.milliseconds(op, s), s.dtype != "fp32"))
        if not quantized:
            # bf16 by itself is no reason to leave fp32 where int8 is not even possible.
            return next((scheme for scheme in floats if scheme.dtype == "fp32"), best_float)
        modes = sorted({s.mode or "" for s in quantized}, key=lambda mode: ("static", "weight", "dynamic").index(mode))
        by_mode = {mode: [s for s in quantized if s.mode == mode] for mode in modes}
        # Static first: a dynamic scheme wins only when it is clearly faster, since its speed hangs on the input.
        mode = min(modes, key=lambda m: self.milliseconds(op, by_mode[m][0]) * (1.0 if m != "dynamic" else CLEARLY_SLOWER))
        best = min(by_mode[mode], key=lambda s: (self.harm(op, s), by_mode[mode].index(s)))
        fp32 = next((scheme for scheme in floats if scheme.dtype == "fp32"), None)
        return fp32 if fp32 is not None and self._not_worth_it(op, best, fp32) else best

    def _not_worth_it(self, op: str, quantized: Scheme, fp32: Scheme) -> bool:
        slow, fast = self.milliseconds(op, quantized), self.milliseconds(op, fp32)
        return slow > CLEARLY_SLOWER * fast > 0 and slow - fast > MATTERS * self._fp32_total

    @cached_property
    def _fp32_total(self) -> float:
        return sum(ms for (_, scheme), ms in self.cost.items() if scheme.dtype == "fp32")

    def chain(self, *, exact: bool = False) -> list[Switch]:
        """The way from :meth:`fastest` to all float, one op a step, the most relief for the least time first.

        An op that a repair helps is repaired first, and only further on left in float. With ``exact`` the way leads to fp32, where
        ops would otherwise go to bf16 if that is faster.
        """
        start = self.fastest()
        steps = [step for op, scheme in start.items() for step in self._escapes(op, scheme, exact)]
        return sorted(steps, key=lambda step: (-step.relief / self._price(start, step), step.op, step.scheme.is_float))

    def _price(self, start: Plan, step: Switch) -> float:
        # Never free: without a floor a tiny op with tiny harm would come before the big one that does the damage.
        extra = self.milliseconds(step.op, step.scheme) - self.milliseconds(step.op, start[step.op])
        floor = 0.05 * max(self.cost.values(), default=1.0)
        return max(extra, floor, 1e-6)

    def _escapes(self, op: str, scheme: Scheme, exact: bool) -> list[Switch]:
        """The steps that an op takes away from harm: its best repair, if that helps enough, then the fastest float scheme."""
        if scheme.is_float:
            return []
        harm, steps = self.harm(op, scheme), []
        floats = [s for s in self.choices[op] if s.is_float and not (exact and s.dtype != "fp32")]
        # bf16 does a hundredth of the harm of int8; it is taken where it is measured to be faster than fp32.
        weighted = {s: self.milliseconds(op, s) * (1.0 if s.dtype == "fp32" else CLEARLY_SLOWER) for s in floats}
        target = min(floats, key=lambda s: (weighted[s], s.dtype != "fp32"), default=None)
        repaired = min((s for s in self.choices[op] if s.repairs), key=lambda s: self.harm(op, s), default=None)
        if repaired is not None and self._helps(op, repaired, harm, target):
            steps.append(Switch(op, repaired, harm - self.harm(op, repaired)))
            harm = self.harm(op, repaired)
        if target is not None:
            steps.append(Switch(op, target, harm - self.harm(op, target)))
        return steps

    def _helps(self, op: str, repaired: Scheme, harm: float, target: Scheme | None) -> bool:
        # Cheaper than float and with most of the relief: so its step always comes before the step to float in a chain.
        cheap = target is None or self.milliseconds(op, repaired) <= self.milliseconds(op, target)
        return cheap and self.harm(op, repaired) < HELPS * harm
