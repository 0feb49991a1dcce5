"""What a strategy may choose from: the schemes of every op, what each one costs and how much harm it does.

space = Space.of(ops, harms=harms, costs=costs, plan_probe=plan_probe)
space.fastest()                       # every op in its fastest scheme
space.ladders["layer.query"]          # what that op could be instead, with harm and cost
space.plan_harm(plan)                 # label-free harm of a whole plan
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from octune.cost.noise import UNSEEN, clearly_faster, not_worth_int8, on_grid
from octune.plan import Op, Plan, Scheme
from octune.search.ladder import KINDS, Ladder, Rung, kind_of, pareto

__all__ = ["Space"]

# As a share of the most expensive op: what float costs at least, and what a repair costs, whatever its timing
# says. It is a multiplication that the compiled form does in passing.
LEAST, REPAIR = 0.05, 0.005
Key = tuple[str, Scheme]


@dataclass(frozen=True)
class Space:
    """The legal schemes of every op. ``harms`` is the harm to the output, ``costs`` milliseconds (or bytes);
    both by (op, scheme).

    ``plan_probe`` measures the harm of a whole plan without labels (see octune.harm.plan_probe); None where
    there is no data for it.
    """

    choices: Mapping[str, tuple[Scheme, ...]]
    harms: Mapping[Key, float] = field(default_factory=dict)
    costs: Mapping[Key, float] = field(default_factory=dict)
    plan_probe: Callable[[Plan], float] | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        ops: Sequence[Op],
        harms: Mapping[Key, float] | None = None,
        costs: Mapping[Key, float] | None = None,
        plan_probe: Callable[[Plan], float] | None = None,
    ) -> Space:
        """The space of all schemes that the ops have."""
        return cls({op.name: op.schemes for op in ops}, harms or {}, costs or {}, plan_probe)

    def harm(self, op: str, scheme: Scheme) -> float:
        """Predicted harm of one op in one scheme; none for fp32, and for what was not measured."""
        return self.harms.get((op, scheme), 0.0)

    def cost(self, op: str, scheme: Scheme) -> float:
        """Measured cost of one op in one scheme; 0 if it was not measured."""
        return self.costs.get((op, scheme), 0.0)

    def total_harm(self, plan: Plan) -> float:
        """Predicted harm of a plan: errors of different ops are practically independent, so their squares add
        up.
        """
        return sum(self.harm(op, scheme) for op, scheme in plan.items())

    def total_cost(self, plan: Plan) -> float:
        """Predicted cost of a plan."""
        return sum(self.cost(op, scheme) for op, scheme in plan.items())

    def plan_harm(self, plan: Plan) -> float:
        """Harm of a plan as a whole: measured without labels where that is possible, else predicted."""
        return self.total_harm(plan) if self.plan_probe is None else self.plan_probe(plan)

    # -- the fastest plan ------------------------------------------------------------------------------------

    def fastest(self) -> Plan:
        """Every op in its fastest scheme, nothing repaired; among the equally fast ones (range methods), the
        least harmful.
        """
        return self._fastest_plan

    @cached_property
    def _fastest_plan(self) -> Plan:
        return Plan({op: self._fastest(op, schemes) for op, schemes in self.choices.items()})

    def _fastest(self, op: str, schemes: tuple[Scheme, ...]) -> Scheme:
        fp32 = next((scheme for scheme in schemes if scheme.dtype == "fp32"), None)
        # A repair is for an op that needs one: it costs a little, and where nothing is wrong it can do harm.
        quantized = [scheme for scheme in schemes if not scheme.is_float and not scheme.repairs]
        if not quantized:
            # bf16 by itself is not a reason to leave fp32 where int8 is not even possible.
            return fp32 or schemes[0]
        # Static first: the speed of a dynamic scheme depends on the input.
        wins = self._dynamic_wins
        wanted = [s for s in quantized if (s.mode == "dynamic" if wins else not s.is_dynamic)]
        best = min(wanted or quantized, key=lambda scheme: self.harm(op, scheme))
        if fp32 is not None and not_worth_int8(self.cost(op, best), self.cost(op, fp32), self._fp32_total):
            return fp32
        return best

    @cached_property
    def _dynamic_wins(self) -> bool:
        """Whether dynamic is clearly faster than static over all ops that can be both: one op's timing is not
        enough for such a decision.
        """
        static = dynamic = 0.0
        for op, schemes in self.choices.items():
            by_mode = {s.mode: self.cost(op, s) for s in reversed(schemes) if not s.repairs}
            if "static" in by_mode and "dynamic" in by_mode:
                static, dynamic = static + by_mode["static"], dynamic + by_mode["dynamic"]
        return clearly_faster(dynamic, static)

    @cached_property
    def _fp32_total(self) -> float:
        return sum(cost for (_, scheme), cost in self.costs.items() if scheme.dtype == "fp32")

    @cached_property
    def _most_expensive(self) -> float:
        return on_grid(max(self.costs.values(), default=0.0)) or 1.0

    # -- what else there is ----------------------------------------------------------------------------------

    @cached_property
    def ladders(self) -> Mapping[str, Ladder]:
        """What every op could be, its fastest scheme first. An op that is in float because it is faster there
        has one rung only.
        """
        return {op: self._ladder(op, scheme) for op, scheme in self.fastest().items()}

    def _ladder(self, op: str, fastest: Scheme) -> Ladder:
        first = Rung(fastest, self.harm(op, fastest), 0.0)
        return pareto(first, () if fastest.is_float else self._above(op, first))

    def _above(self, op: str, first: Rung) -> Iterator[Rung]:
        """The least harmful scheme of every other kind, with what it costs more than the first."""
        kinds: dict[str, Scheme] = {}
        for scheme in sorted(self.choices[op], key=lambda scheme: self.harm(op, scheme)):
            if scheme.is_float or not self.harms or (op, scheme) in self.harms:  # else it was not looked at
                kinds.setdefault(kind_of(scheme), scheme)
        most = self._most_expensive
        own = on_grid(self.cost(op, first.scheme))
        floats = {
            kind: max(UNSEEN * on_grid(self.cost(op, kinds[kind])) - own, LEAST * most)
            for kind in ("bf16", "fp32")
            if kind in kinds
        }
        for kind in KINDS[1:]:
            if kind not in kinds:
                continue
            harm = self.harm(op, scheme := kinds[kind])
            if kind in floats:
                yield Rung(scheme, harm, floats[kind])
            elif kind == "repaired":
                yield Rung(scheme, harm, REPAIR * most)
            elif kind == "dynamic":
                yield Rung(scheme, harm, max(on_grid(self.cost(op, scheme)) - own, REPAIR * most))
