"""Weights in int8, each made once and kept: variants of a model differ in which of them they use.

weights = Int8Weights(Limit.PAIRS)
made = weights.get(found, scheme, multiplier=None)
made.values, made.scales
"""

from __future__ import annotations

import hashlib

from octune.backends.onnx.graph import Array
from octune.backends.onnx.kinds import Found
from octune.int8 import LARGEST, LARGEST_OF_TWO_ACTIVATIONS, Int8Weight, Limit
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["Int8Weights"]


class Int8Weights:
    """Quantizes weights on demand and remembers them."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._kept: dict[tuple[object, ...], Int8Weight] = {}

    @property
    def largest_activation(self) -> int:
        """The largest number that stands for an activation where another one takes the weight's place."""
        return LARGEST if self._limit is Limit.NONE else LARGEST_OF_TWO_ACTIVATIONS

    def get(self, found: Found, scheme: Scheme, multiplier: Array | None = None) -> Int8Weight:
        """The weights of an op, for an input whose channels are multiplied by ``multiplier``."""
        if found.weight is None:
            raise ValueError(f"{found.op.name} has no weight")
        repairs = repairs_of(scheme)
        digest = (
            ""
            if multiplier is None
            else hashlib.sha1(multiplier.tobytes(), usedforsecurity=False).hexdigest()
        )
        key = (found.op.name, scheme.granularity, repairs.weight_names, digest)
        if key not in self._kept:
            # Without a product, there is no sum that could overflow.
            limit = self._limit if found.kind.multiplies else Limit.NONE
            self._kept[key] = repairs.int8_weight(
                found.weight, found.groups, scheme.granularity, limit, multiplier
            )
        return self._kept[key]
