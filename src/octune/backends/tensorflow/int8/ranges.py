"""On which grid each tensor is quantized under a plan.

Activations of matmuls are uint8 with a zero point. Convolutions take uint8 only from zero on, and int8 around
zero for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octune.backends.base import OUTPUT
from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.int8.site import Site
from octune.calibration import Ranges, TensorStats, choose_range
from octune.errors import PlanError
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import Smoothing, shared_smoothing

__all__ = ["activation_grid", "conv_grid", "equalising", "output_grid", "smoothed", "stats_of"]

# A largest channel that is this many times larger than the middle one costs that one three of its eight bits.
OUTLIER = 8


def conv_grid(low: float, high: float) -> Grid:
    """From zero on if nothing is below it, else around zero."""
    plain = Grid.affine(low, high)
    return plain if plain.zero_point == 0 else Grid.symmetric(max(-plain.low, plain.high))


def stats_of(site: Site, scheme: Scheme, ranges: Ranges) -> TensorStats:
    """What calibration saw of a site's input."""
    stats = ranges.get(site.op.name)
    if stats is None:
        raise PlanError(
            f"The plan asks for {scheme} at {site.op.name!r}, which needs calibration data, and this op "
            "never ran on any. Leave it in fp32."
        )
    if not stats.finite:
        raise PlanError(
            f"The plan asks for {scheme} at {site.op.name!r}, whose input was not finite during calibration. "
            "Leave it in fp32, or mend the data."
        )
    return stats


def activation_grid(site: Site, scheme: Scheme, ranges: Ranges) -> Grid:
    """The grid of a site's input under a static scheme without repairs."""
    low, high = choose_range(stats_of(site, scheme, ranges), scheme.range_method or "minmax")
    return conv_grid(low, high) if site.is_conv else Grid.affine(low, high)


def output_grid(site: Site, scheme: Scheme, ranges: Ranges) -> Grid | None:
    """The grid of a convolution's output without an addend, if calibration saw it."""
    stats = ranges.get(site.op.name + OUTPUT)
    if stats is None or not stats.finite:
        return None
    low, high = choose_range(stats, scheme.range_method or "minmax")
    if site.plain.activation is not None:
        return Grid.affine(0.0, high)
    return Grid.symmetric(max(-low, high) or 1.0)


def equalising(site: Site, ranges: Ranges) -> Array | None:
    """What to multiply a convolution's output channels by, so that all have one range; None where they are
    alike enough as they are.

    The kernel rounds its output, and one range for channels of very different size leaves nothing of the
    smaller ones.
    """
    stats = ranges.get(site.op.name + OUTPUT)
    activation = site.plain.activation
    if (
        stats is None
        or stats.channel_max.size != site.columns
        or (activation is not None and activation.name != "Relu")
    ):
        return None
    peaks = stats.channel_max.astype(np.float64)
    largest, middle = float(peaks.max()), float(np.median(peaks))
    if not 0 < largest < np.inf or middle * OUTLIER > largest:
        return None
    # A channel that calibration saw asleep may wake up.
    return np.asarray(1 / np.maximum(peaks, max(middle / 4, largest * 1e-4)), np.float32)


def smoothed(sites: Sequence[Site], weights: Sequence[Array], scheme: Scheme, ranges: Ranges) -> Smoothing:
    """One smoothing for all sites that read the same tensor: they then read the same int8 tensor, too."""
    stats = stats_of(sites[0], scheme, ranges)
    channels = weights[0].shape[-2]
    if stats.channel_max.size != channels:
        raise PlanError(
            f"The plan asks for {scheme} at {sites[0].op.name!r}, but calibration has the extremes of "
            f"{stats.channel_max.size} channels, "
            f"and the op has {channels}. Calibrate again."
        )
    return shared_smoothing(
        stats, [site.by_output(weight) for site, weight in zip(sites, weights, strict=True)]
    )
