"""Weights in int8, each made once and kept: variants of a model differ in which of them they use.

    store = WeightStore(reach_of(probe_machine()))
    packed = store.get(found, "per_channel", multiplier=None)
    packed.values, packed.scales

On a CPU without VNNI, AMX or dot-product instructions, the products of two neighbours are added in 16 bits before they are widened, and
saturate: 2 * 255 * 127 does not fit. Weights of 7 bits do: 2 * 255 * 64 < 2^15.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octune.backends.onnx.discover import Found
from octune.backends.onnx.graph import Array
from octune.cost.machine import Machine

__all__ = ["Packed", "SATURATES", "WeightStore", "by_output", "per_input", "reach_of"]

FULL, REDUCED = 127, 64
SATURATES = "this CPU has no VNNI, AMX or dot-product instructions, where sums of 8-bit products saturate: int8 weights use 7 bits"


def reach_of(machine: Machine) -> int:
    """The largest int8 number that weights use on this machine."""
    return FULL if machine.vnni else REDUCED


def by_output(vector: Array, ndim: int) -> Array:
    """A vector over outputs, in a shape that multiplies weights of (outputs, inputs, ...)."""
    return vector.reshape(-1, *[1] * (ndim - 1))


def per_input(vector: Array, weight: Array, groups: int) -> Array:
    """A vector over all inputs, in a shape that multiplies weights of (outputs, inputs of a group, ...)."""
    if groups == 1:
        return vector.reshape(1, -1, *[1] * (weight.ndim - 2))
    wide = np.repeat(vector.reshape(groups, -1), weight.shape[0] // groups, axis=0)
    return wide.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """int8 weights of (outputs, inputs of a group, ...), and what each output (or all of them) is multiplied by."""

    values: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]

    def dequantized(self) -> npt.NDArray[np.float32]:
        """The weights that these stand for."""
        scales = self.scales if self.scales.size == 1 else by_output(self.scales, self.values.ndim)
        return np.asarray(self.values * scales, np.float32)


class WeightStore:
    """Quantizes weights on demand and remembers them."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self._kept: dict[tuple[str, str | None, str], Packed] = {}

    def get(self, found: Found, granularity: str | None, multiplier: Array | None = None) -> Packed:
        """The weights of an op, over ``multiplier`` by input channel where its input is multiplied by it."""
        digest = "" if multiplier is None else hashlib.sha1(multiplier.tobytes(), usedforsecurity=False).hexdigest()
        key = (found.op.name, granularity, digest)
        if key not in self._kept:
            self._kept[key] = self._pack(found, granularity, multiplier)
        return self._kept[key]

    def _pack(self, found: Found, granularity: str | None, multiplier: Array | None) -> Packed:
        weight = found.weight
        if weight is None:
            raise ValueError(f"{found.op.name} has no weight")
        if multiplier is not None:
            weight = weight / per_input(multiplier, weight, found.groups)
        # An embedding's rows are only read, never multiplied: they cannot saturate.
        reach = FULL if found.op.kind == "embedding" else self.reach
        axes = tuple(range(1, weight.ndim)) if granularity == "per_channel" else None
        peaks = np.maximum(weight.max(axis=axes), -weight.min(axis=axes))
        scales = np.atleast_1d(np.where(peaks > 1e-30, peaks / reach, 1.0).astype(np.float32))
        wide = scales if scales.size == 1 else by_output(scales, weight.ndim)
        values = np.clip(np.rint(weight / wide), -reach, reach).astype(np.int8)
        return Packed(values, scales if granularity == "per_channel" else scales[:1])
