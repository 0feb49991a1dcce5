"""On which grid each tensor is quantized under a plan.

Which grids an op can take is known to its kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.calibration import Ranges, TensorStats, choose_range
from octune.errors import PlanError
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import Smoothing, shared_smoothing

__all__ = ["AVERAGED", "activation_grid", "smoothed", "stats_of"]

AVERAGED = ":averaged"  # what comes into an average pooling before an op


def stats_of(fused: FusedOp, scheme: Scheme, ranges: Ranges) -> TensorStats:
    """What calibration saw of an op's input."""
    stats = ranges.get(fused.op.name)
    if stats is None:
        raise PlanError(
            f"The plan asks for {scheme} at {fused.op.name!r}, which needs calibration data, and this op "
            "never ran on any. Leave it in fp32."
        )
    if not stats.finite:
        raise PlanError(
            f"The plan asks for {scheme} at {fused.op.name!r}, whose input was not finite during "
            "calibration. Leave it in fp32, or fix the data."
        )
    return stats


def activation_grid(fused: FusedOp, scheme: Scheme, ranges: Ranges) -> Grid:
    """The grid of an op's input under a static scheme without repairs."""
    stats = stats_of(fused, scheme, ranges)
    averaged = ranges.get(fused.op.name + AVERAGED)
    if averaged is not None and averaged.finite:
        stats = averaged
    low, high = choose_range(stats, scheme.range_method or "minmax")
    return fused.kind.grid(low, high)


def smoothed(
    fused_ops: Sequence[FusedOp], weights: Sequence[Array], scheme: Scheme, ranges: Ranges
) -> Smoothing:
    """One smoothing for all ops that read the same tensor: they then read the same int8 tensor, too."""
    stats = stats_of(fused_ops[0], scheme, ranges)
    channels = weights[0].shape[-2]
    if stats.channel_max.size != channels:
        raise PlanError(
            f"The plan asks for {scheme} at {fused_ops[0].op.name!r}, but calibration has the extremes of "
            f"{stats.channel_max.size} channels, "
            f"and the op has {channels}. Calibrate again."
        )
    return shared_smoothing(
        stats, [fused.kind.by_output(weight) for fused, weight in zip(fused_ops, weights, strict=True)]
    )
