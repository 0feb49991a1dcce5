"""In which range each tensor is quantized under a plan.

Activations of matmuls are uint8 with a zero point. Convolutions take uint8 only from zero on, and int8 around zero for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octune.backends.tensorflow.graph import Array
from octune.backends.tensorflow.site import Site
from octune.calibration import Ranges, TensorStats, affine_uint8, choose_range
from octune.errors import PlanError
from octune.plan import Scheme
from octune.repair import Smoothing, smoothing

__all__ = ["Range", "activation_range", "output_range", "smoothed", "stats_of"]


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

    def rounded(self, x: Array) -> Array:
        """x as it is after quantizing it and back: what an exact kernel would read."""
        if self.signed:
            scale = self.high / 127
            return np.asarray(np.clip(np.rint(x / scale), -128, 127) * scale, np.float32)
        levels, zero = self.levels(x)
        return np.asarray((levels.astype(np.float64) - zero) * (self.high - self.low) / 255, np.float32)

    def levels(self, x: Array) -> tuple[Array, int]:
        """The integers that stand for x, and the one that stands for zero."""
        scale, zero = affine_uint8(self.low, self.high)
        return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), zero


def stats_of(site: Site, scheme: Scheme, ranges: Ranges) -> TensorStats:
    """What calibration saw of a site's input."""
    stats = ranges.get(site.op.name)
    if stats is None:
        raise PlanError(
            f"The plan asks for {scheme} at {site.op.name!r}, which needs calibration data, and this op never ran on any. Leave it in fp32."
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


def smoothed(sites: Sequence[Site], weights: Sequence[Array], scheme: Scheme, ranges: Ranges) -> Smoothing:
    """One smoothing for all sites that read the same tensor: they then read the same int8 tensor, too."""
    stats = stats_of(sites[0], scheme, ranges)
    if stats.channel_max.size != len(weights[0]):
        raise PlanError(
            f"The plan asks for {scheme} at {sites[0].op.name!r}, but calibration has the extremes of {stats.channel_max.size} channels, "
            f"and the op has {len(weights[0])}. Calibrate again."
        )
    return smoothing(stats, np.concatenate([weight.T for weight in weights]))
