"""What calibration saw of the inputs of the most harmful ops, and the range that 8 bits cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octune.calibration import Ranges
from octune.calibration.observer import TensorStats
from octune.report.html.views.ops import OpRow

__all__ = ["Histogram", "histograms_view"]

WORST, BARS = 10, 80


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values occurred between ``low`` and ``high``, in equal steps; and the chosen range, if the op
    has one.
    """

    op: OpRow
    low: float
    high: float
    counts: tuple[float, ...]
    chosen: tuple[float, float] | None


def histograms_view(ops: Sequence[OpRow], ranges: Ranges) -> tuple[Histogram, ...]:
    """Of the ten ops that int8 harms most."""
    worst = sorted((op for op in ops if op.harm is not None), key=lambda op: -op.worst)
    found = [_histogram(op, ranges[op.name]) for op in worst if op.name in ranges]
    return tuple(histogram for histogram in found if histogram is not None)[:WORST]


def _histogram(op: OpRow, stats: TensorStats) -> Histogram | None:
    if stats.counts.sum() == 0 or stats.high <= stats.low:
        return None
    low, high = min(stats.low, 0.0), max(stats.high, 0.0)
    # The outermost values lie in bins whose centres may lie outside.
    inside = np.clip(stats.centres, low, high)
    counts, _ = np.histogram(inside, bins=BARS, range=(low, high), weights=stats.counts)
    static = op.scheme is not None and op.scheme.range_method is not None
    chosen = (op.low, op.high) if static and op.low is not None and op.high is not None else None
    return Histogram(op, low, high, tuple(counts.tolist()), chosen)
