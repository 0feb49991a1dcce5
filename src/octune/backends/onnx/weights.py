"""Weights in int8, each made once and kept: variants of a model differ in which of them they use.

store = WeightStore(Limit.PAIRS)
packed = store.get(found, scheme, multiplier=None)
packed.values, packed.scales
"""

from __future__ import annotations

import hashlib

from octune.backends.onnx.discover import Found
from octune.backends.onnx.graph import Array
from octune.int8 import LARGEST, LARGEST_OF_TWO_ACTIVATIONS, Int8Weight, Limit
from octune.plan import Scheme
from octune.repair import Repairs, repairs_of

__all__ = ["WeightStore"]


class WeightStore:
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
        repairs = repairs_of(scheme)
        digest = (
            ""
            if multiplier is None
            else hashlib.sha1(multiplier.tobytes(), usedforsecurity=False).hexdigest()
        )
        key = (found.op.name, scheme.granularity, repairs.weight_names, digest)
        if key not in self._kept:
            self._kept[key] = self._pack(found, scheme.granularity, repairs, multiplier)
        return self._kept[key]

    def _pack(
        self, found: Found, granularity: str | None, repairs: Repairs, multiplier: Array | None
    ) -> Int8Weight:
        if found.weight is None:
            raise ValueError(f"{found.op.name} has no weight")
        # An embedding's rows are only read, never multiplied: there is nothing to overflow.
        limit = Limit.NONE if found.op.kind == "embedding" else self._limit
        return repairs.int8_weight(found.weight, found.groups, granularity, limit, multiplier)
