"""When one op is faster than another: all that is made of timings of single ops.

Whole models run in turns, and a speed-up comes with an interval (:class:`octune.cost.latency.Speedup`). A
single op takes microseconds and is timed alone, so a factor decides.
"""

from __future__ import annotations

import math

__all__ = ["CLEAR", "UNSEEN", "clearly_faster", "not_worth_int8", "on_grid"]

# Timings of two ops that differ by less than this factor are the same.
CLEAR = 1.2
# int8 ops next to each other save conversions that no timing of a single op shows, and int8 is smaller: an op
# in float counts for this many times what it takes alone.
UNSEEN = 1.5
# Nor is int8 given up for a gain that does not matter: this share of the fp32 model, or what it costs to call
# a kernel, which the compiled form does not pay.
MATTERS, CALL_MS = 0.03, 0.05


def clearly_faster(fast: float, slow: float) -> bool:
    """Whether the first of two timings is clearly shorter. What was not timed (0) is not."""
    return 0 < CLEAR * fast < slow


def not_worth_int8(int8: float, fp32: float, total: float) -> bool:
    """Whether an op should stay in fp32 for its own sake; ``total`` is what all ops take in fp32."""
    return int8 > UNSEEN * fp32 > 0 and int8 - fp32 > max(CALL_MS, MATTERS * total)


def on_grid(cost: float) -> float:
    """The nearest power of :data:`CLEAR`, so that no choice depends on the noise of a timing."""
    return CLEAR ** round(math.log(cost, CLEAR)) if cost > 0 else 0.0
