"""Every op: its scheme, its harm, its time, its range, and why it stayed float if it did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octune.calibration import choose_range
from octune.calibration.observer import TensorStats
from octune.plan import Scheme
from octune.report.html import formats
from octune.report.html.facts import Facts, OpFacts

__all__ = ["OpRow", "clipped", "op_rows"]


@dataclass(frozen=True, slots=True)
class OpRow:
    """One op. ``harm`` is that of plain int8, ``repaired`` the least with a repair; ``int8_ms`` is the time
    of the scheme it has, or of its fastest int8 scheme if it stayed float. ``low`` and ``high`` are the range
    that 8 bits cover, ``clipped`` the share of the values outside.
    """

    name: str
    kind: str
    parameters: int
    scheme: Scheme | None
    harm: float | None
    repaired: float | None
    fp32_ms: float | None
    int8_ms: float | None
    low: float | None
    high: float | None
    clipped: float | None
    why_float: str
    tip: str

    @property
    def saved_ms(self) -> float | None:
        """What its scheme saves; nothing if it stayed float."""
        if self.fp32_ms is None or self.int8_ms is None or self.scheme is None or self.scheme.dtype == "fp32":
            return None
        return self.fp32_ms - self.int8_ms

    @property
    def worst(self) -> float:
        """What to sort by: harm, unknown last."""
        return -1.0 if self.harm is None else self.harm


def op_rows(facts: Facts) -> tuple[OpRow, ...]:
    """All ops, in the order of the model."""
    plan = {} if facts.shown is None else facts.shown.plan
    kept = {} if facts.result is None else facts.result.kept
    by_op: dict[str, list[Scheme]] = {}
    for name, scheme in (*facts.harms, *facts.costs):
        known = by_op.setdefault(name, [])
        if scheme not in known:
            known.append(scheme)
    return tuple(
        _row(facts, op, plan.get(op.name), by_op.get(op.name, []), kept.get(op.name, "")) for op in facts.ops
    )


def _row(facts: Facts, op: OpFacts, scheme: Scheme | None, schemes: list[Scheme], why: str) -> OpRow:
    def least(repaired: bool) -> float | None:
        found = [
            facts.harms[op.name, s]
            for s in schemes
            if (op.name, s) in facts.harms and not s.is_float and bool(s.repairs) == repaired
        ]
        return min(found, default=None)

    quantized = [
        facts.costs[op.name, s]
        for s in schemes
        if (op.name, s) in facts.costs and not s.is_float and not s.repairs
    ]
    own = None if scheme is None or scheme.dtype == "fp32" else facts.costs.get((op.name, scheme))
    stats = facts.evidence.ranges.get(op.name)
    low, high, share = (None, None, None) if stats is None else _range(stats, scheme)
    return OpRow(
        op.name,
        op.kind,
        op.parameters,
        scheme,
        least(repaired=False),
        least(repaired=True),
        facts.costs.get((op.name, Scheme.fp32())),
        own if own is not None else min(quantized, default=None),
        low,
        high,
        share,
        why or (op.note if not schemes else ""),
        _tip(facts, op, schemes),
    )


def _range(stats: TensorStats, scheme: Scheme | None) -> tuple[float | None, float | None, float | None]:
    """The range that static int8 uses; for others, what calibration saw, of which nothing is clipped."""
    if stats.channel_max.size == 0:
        return None, None, None
    if scheme is None or scheme.range_method is None:
        return stats.low, stats.high, None
    low, high = choose_range(stats, scheme.range_method)
    return low, high, clipped(stats, low, high)


def clipped(stats: TensorStats, low: float, high: float) -> float:
    """The share of the values outside a range."""
    total = float(stats.counts.sum())
    # A bin that the end of the range goes through counts as inside.
    half = stats.edge / stats.counts.size
    outside = (stats.centres < low - half) | (stats.centres > high + half)
    return float(np.sum(stats.counts[outside])) / total if total else 0.0


def _tip(facts: Facts, op: OpFacts, schemes: list[Scheme]) -> str:
    lines = [op.name]
    for scheme in schemes:
        harm, cost = facts.harms.get((op.name, scheme)), facts.costs.get((op.name, scheme))
        parts = [] if harm is None else [f"harm {formats.harm(harm)}"]
        parts += [] if cost is None else [formats.ms(cost)]
        lines.append(f"{scheme}: {', '.join(parts)}")
    return "\n".join(lines)
