"""Weights in int8, each made once and kept: variants of a model differ in which of them they use.

store = WeightStore(Limit.PAIRS)
packed = store.get(found, "per_channel", multiplier=None)
packed.values, packed.scales
"""

from __future__ import annotations

import hashlib

import numpy as np

from octune.backends.onnx.discover import Found
from octune.backends.onnx.graph import Array
from octune.int8 import LARGEST, LARGEST_OF_TWO_ACTIVATIONS, Int8Weight, Limit, quantize_weight

__all__ = ["WeightStore", "per_input"]


def per_input(vector: Array, weight: Array, groups: int) -> Array:
    """A vector over all inputs, in a shape that multiplies weights of (outputs, inputs of a group, ...)."""
    if groups == 1:
        return vector.reshape(1, -1, *[1] * (weight.ndim - 2))
    wide = np.repeat(vector.reshape(groups, -1), weight.shape[0] // groups, axis=0)
    return wide.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


class WeightStore:
    """Quantizes weights on demand and remembers them."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._kept: dict[tuple[str, str | None, str], Int8Weight] = {}

    @property
    def largest_activation(self) -> int:
        """The largest number that stands for an activation where another one takes the weight's place."""
        return LARGEST if self._limit is Limit.NONE else LARGEST_OF_TWO_ACTIVATIONS

    def get(self, found: Found, granularity: str | None, multiplier: Array | None = None) -> Int8Weight:
        """The weights of an op, over ``multiplier`` by input channel where its input is multiplied by it."""
        digest = (
            ""
            if multiplier is None
            else hashlib.sha1(multiplier.tobytes(), usedforsecurity=False).hexdigest()
        )
        key = (found.op.name, granularity, digest)
        if key not in self._kept:
            self._kept[key] = self._pack(found, granularity, multiplier)
        return self._kept[key]

    def _pack(self, found: Found, granularity: str | None, multiplier: Array | None) -> Int8Weight:
        weight = found.weight
        if weight is None:
            raise ValueError(f"{found.op.name} has no weight")
        if multiplier is not None:
            weight = weight / per_input(multiplier, weight, found.groups)
        # An embedding's rows are only read, never multiplied: there is nothing to overflow.
        return quantize_weight(
            weight, granularity, Limit.NONE if found.op.kind == "embedding" else self._limit
        )
