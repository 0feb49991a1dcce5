"""int8 weights: one scale for each output channel, or one for all.

    made = quantize_weight(weight, "per_channel", limit_for(portable=True))
    made.values, made.scales            # int8 of the weight's shape; float32, one per output or a single one
    made.dequantized()

A weight is an array of (outputs, inputs of a group, *kernel), whatever framework it comes from.

A CPU without an int8 dot product adds the products of two neighbouring inputs in 16 bits before it widens
them. Under ``Limit.PAIRS`` that is safe for every possible input: the positive weights of such a pair add up
to at most 128, and so do the negative ones, because 255 * 128 fits into 16 bits. It takes a larger scale for
most channels, by a quarter in the median: much less than giving up the eighth bit.

Which weights are neighbours depends on how a kernel packs them. In all kernels that were looked at, it is
input channels 2i and 2i + 1 at one position of the kernel, unless their number is odd: then pairs may reach
over to the next position, and any two weights of an output count as neighbours.
tests/backends/saturation.py feeds every backend's real kernels the inputs that would overflow first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.machine import probe_machine

__all__ = [
    "ANYWHERE",
    "LARGEST",
    "LARGEST_OF_TWO_ACTIVATIONS",
    "Int8Weight",
    "Limit",
    "NEEDS_EXACT",
    "by_input",
    "by_output",
    "limit_for",
    "limited_again",
    "quantize_weight",
]

LARGEST = 127
# Where both operands are activations, any two numbers may meet: 255 * 64 * 2 fits into 16 bits.
LARGEST_OF_TWO_ACTIVATIONS = 64

ANYWHERE, NEEDS_EXACT = "any x86-64 CPU", "x86-64 CPUs with VNNI or AMX"

Array = npt.NDArray[Any]


class Limit(Enum):
    """What keeps sums exact where pairs of products are added in 16 bits."""

    NONE = "none"  # nothing: weights use all of their 8 bits
    PAIRS = "pairs"  # two neighbours of one sign add up to at most 128
    # only even weights: kernels that halve the weights of signed activations do not change these
    EVEN = "even"

    @property
    def safe_on(self) -> str:
        """Where sums of such weights are exact."""
        return NEEDS_EXACT if self is Limit.NONE else ANYWHERE


def limit_for(*, portable: bool) -> Limit:
    """What weights must keep to: safe on any CPU if they are to travel, else on this one."""
    return Limit.PAIRS if portable or not probe_machine().exact_int8 else Limit.NONE


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight:
    """int8 values, and what those of each output (or all of them) are multiplied by."""

    values: npt.NDArray[np.int8]
    scales: Array

    def dequantized(self) -> Array:
        """The weights that these stand for."""
        return np.asarray(self.values * by_output(self.scales, self.values.ndim), np.float32)


def by_output(vector: Array, ndim: int) -> Array:
    """A vector over outputs, in a shape that multiplies weights of (outputs, inputs, ...)."""
    return vector.reshape(-1, *[1] * (ndim - 1))


def by_input(vector: Array, weight: Array, groups: int = 1) -> Array:
    """A vector over all inputs, in a shape that multiplies weights of (outputs, inputs of a group, ...)."""
    wide = vector.reshape(groups, -1)
    if groups > 1:
        wide = np.repeat(wide, weight.shape[0] // groups, axis=0)
    return wide.reshape(*wide.shape, *[1] * (weight.ndim - 2))


def quantize_weight(weight: Array, granularity: str | None, limit: Limit) -> Int8Weight:
    """A float weight in int8, one scale for each output (``per_channel``) or one for all."""
    weight = np.asarray(weight, np.float32)
    step = 2 if limit is Limit.EVEN else 1
    levels = LARGEST // step
    peaks = _pair_peaks(weight) if limit is Limit.PAIRS else _peaks(weight)
    if granularity != "per_channel":
        peaks = peaks.max(keepdims=True, initial=0.0)
    # A pair's sum is at most 127 before its two weights are rounded, each by at most one half: 128 at most.
    scales = np.where(
        peaks > levels * np.finfo(np.float32).tiny, peaks / np.float32(levels), np.float32(1)
    ).astype(np.float32)
    values = np.rint(weight / by_output(scales, weight.ndim)).clip(-levels, levels) * step
    return Int8Weight(values.astype(np.int8), scales / np.float32(step))


def limited_again(weight: Int8Weight) -> Int8Weight:
    """Weights that were made for CPUs with an int8 dot product, made safe for those without; channels that
    are safe stay as they are.
    """
    floats = weight.dequantized()
    limited = quantize_weight(floats, "per_channel", Limit.PAIRS)
    scales = np.broadcast_to(weight.scales, limited.scales.shape)
    safe = _pair_peaks(weight.values.astype(np.float32)) <= LARGEST + 1
    kept = by_output(safe, floats.ndim)
    return Int8Weight(
        np.where(kept, weight.values, limited.values),
        np.where(safe, scales, limited.scales).astype(np.float32),
    )


def _peaks(weight: Array) -> Array:
    """The largest absolute weight of every output."""
    flat = weight.reshape(weight.shape[0], -1)
    return np.asarray(np.maximum(flat.max(axis=1, initial=0.0), -flat.min(axis=1, initial=0.0)))


def _pair_peaks(weight: Array) -> Array:
    """The largest sum, of every output, that two neighbours of one sign have; or a single weight, where that
    is larger.
    """
    inputs = weight.shape[1] if weight.ndim > 1 else 1
    flat = weight.reshape(weight.shape[0], -1)
    positive, negative = np.maximum(flat, 0.0), np.maximum(-flat, 0.0)
    if inputs % 2 and inputs != flat.shape[1]:
        return np.asarray(np.maximum(_two_largest(positive), _two_largest(negative)))
    return np.asarray(np.maximum(_neighbours(positive, weight.shape), _neighbours(negative, weight.shape)))


def _two_largest(flat: Array) -> Array:
    if flat.shape[1] < 2:
        return np.asarray(flat.sum(axis=1))
    return np.asarray(np.partition(flat, -2, axis=1)[:, -2:].sum(axis=1))


def _neighbours(flat: Array, shape: tuple[int, ...]) -> Array:
    channels = flat.reshape(shape[0], shape[1] if len(shape) > 1 else 1, -1)
    if channels.shape[1] % 2:
        channels = np.pad(channels, ((0, 0), (0, 1), (0, 0)))
    return np.asarray((channels[:, ::2] + channels[:, 1::2]).max(axis=(1, 2), initial=0.0))
