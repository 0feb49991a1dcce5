"""In which range each tensor is quantized under a plan.

Activations of matmuls are uint8 with a zero point. Convolutions take uint8 only from zero on, and int8 around
zero for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.int8.site import Site
from octune.calibration import Ranges, TensorStats, affine_uint8, choose_range
from octune.errors import PlanError
from octune.plan import Scheme
from octune.repair import Smoothing, smoothing

__all__ = ["Range", "activation_range", "equalising", "output_range", "smoothed", "stats_of"]

# So many times larger than the middle channel is the largest one where it costs that one three of its eight
# bits.
OUTLIER = 8


@dataclass(frozen=True, slots=True)
class Range:
    """uint8 over [low, high], or int8 around zero."""

    low: float
    high: float
    signed: bool = False

    @classmethod
    def affine(cls, low: float, high: float) -> Range:
        """A range that holds zero at a whole level, and is not empty.

        The kernels disagree about where zero is otherwise, which costs as much again as the rounding itself.
        """
        scale, zero = affine_uint8(low, high)
        return cls(-zero * scale, (255 - zero) * scale)

    @classmethod
    def for_conv(cls, low: float, high: float) -> Range:
        """From zero on if nothing is below it, else around zero."""
        plain = cls.affine(low, high)
        reach = max(-plain.low, plain.high)
        return plain if plain.low >= 0 else cls(-reach, reach, signed=True)

    @property
    def grid(self) -> tuple[float, int, int]:
        """The step between two levels, and how many of them are at most below and above zero."""
        if self.signed:
            return self.high / 127, -128, 127
        scale, zero = affine_uint8(self.low, self.high)
        return scale, -zero, 255 - zero

    def rounded(self, x: Array) -> Array:
        """x as it is after quantizing it and back: what an exact kernel would read."""
        scale, least, most = self.grid
        return np.asarray(np.clip(np.rint(x / scale), least, most) * scale, np.float32)

    def levels(self, x: Array) -> Array:
        """The integers that stand for x."""
        scale, least, most = self.grid
        levels = np.clip(np.rint(x / scale), least, most)
        return levels.astype(np.int8) if self.signed else (levels - least).astype(np.uint8)

    def floats(self, levels: Array) -> Array:
        """The inverse of :meth:`levels`, for any view of the same bytes."""
        scale, least, _ = self.grid
        integers = np.asarray(levels).view(np.int8 if self.signed else np.uint8).astype(np.float64)
        return np.asarray((integers if self.signed else integers + least) * scale)


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


def activation_range(site: Site, scheme: Scheme, ranges: Ranges) -> Range:
    """The range of a site's input under a static scheme without repairs."""
    low, high = choose_range(stats_of(site, scheme, ranges), scheme.range_method or "minmax")
    return Range.for_conv(low, high) if site.is_conv else Range.affine(low, high)


def output_range(site: Site, scheme: Scheme, ranges: Ranges) -> Range | None:
    """The range of what a convolution gives without an addend, if calibration saw it."""
    stats = ranges.get(f"{site.op.name}:output")
    if stats is None or not stats.finite:
        return None
    low, high = choose_range(stats, scheme.range_method or "minmax")
    if site.plain.activation is not None:
        return Range.affine(0.0, high)
    reach = max(-low, high)
    return Range(-reach, reach, signed=True) if reach > 0 else Range(-1.0, 1.0, signed=True)


def equalising(site: Site, ranges: Ranges) -> Array | None:
    """What to multiply a convolution's output channels by, so that all have one range; None where they are
    near enough as they are.

    The kernel rounds its output, and one range for channels of very different size leaves the smaller ones
    nothing.
    """
    stats = ranges.get(f"{site.op.name}:output")
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
    parts = [site.by_output(weight) for site, weight in zip(sites, weights, strict=True)]
    if len(parts) == 1:
        return smoothing(stats, *parts[0])
    return smoothing(stats, np.concatenate([_peaks(weight, groups) for weight, groups in parts]))


def _peaks(weight: Array, groups: int) -> Array:
    """(outputs, inputs): the largest weight of every kernel, which stands for it where several ops are
    smoothed together.
    """
    peaks: Array = np.abs(weight).reshape(*weight.shape[:2], -1).max(axis=2)
    if groups == 1:
        return peaks
    wide = np.zeros((len(peaks), groups), peaks.dtype)
    wide[np.arange(len(peaks)), np.arange(len(peaks)) // (len(peaks) // groups)] = peaks[:, 0]
    return wide
