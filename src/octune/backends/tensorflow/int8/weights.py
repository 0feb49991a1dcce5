"""int8 weights, made once for each op, granularity and smoothing as long as there is room, however many plans
ask for them.

cache = Weights(graph, Limit.PAIRS)
made = cache.int8(site, "per_channel", signed=False)
made.values, made.reach             # int8, and the largest absolute value of every channel
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes

from octune.backends.tensorflow.graph.emit import constant
from octune.backends.tensorflow.graph.graph import Array, Graph
from octune.backends.tensorflow.int8.site import Site
from octune.calibration import TensorStats
from octune.int8 import LARGEST, Limit, quantize_weight
from octune.repair import bias_correction

__all__ = ["Int8Weight", "Weights"]

ROOM = 1 << 30  # bytes: all of BERT-large in three schemes


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """``values * reach / 127`` is the weight; ``reach`` has one number for every output channel, or one for
    all.
    """

    values: npt.NDArray[np.int8]
    reach: Array

    def floats(self) -> Array:
        """The float weights that the int8 ones stand for."""
        return self.values.astype(np.float32) * self.scale()

    def scale(self) -> Array:
        """What ``values`` are multiplied by for that."""
        return (self.reach / np.float32(LARGEST)).reshape(_channels(self.values, self.reach))


def _channels(values: Array, reach: Array) -> tuple[int, ...]:
    """How a vector of channels lies along the last axes of a weight; a depthwise one has two of them."""
    if reach.ndim == 0:
        return ()
    return values.shape[2:] if reach.size != values.shape[-1] else (values.shape[-1],)


class Weights:
    """Keeps the last that it made; the float weights themselves stay in the graph."""

    def __init__(self, graph: Graph, limit: Limit, room: int = ROOM) -> None:
        self._graph, self._limit, self._room = graph, limit, room
        self._made: dict[tuple[str, str, bool, bytes], Int8Weight] = {}
        self._shifts: dict[tuple[str, str, bool, bytes, bytes], Array] = {}

    def int8(
        self, site: Site, granularity: str | None, divisor: Array | None = None, *, signed: bool
    ) -> Int8Weight:
        """The weight of a site, what reads each input channel divided by ``divisor`` first. ``signed``: its
        input is int8, not uint8.
        """
        key = (site.op.name, str(granularity), signed, b"" if divisor is None else divisor.tobytes())
        made = self._made.pop(key, None)
        if made is None:
            weight = site.weights(self._graph)
            made = self._quantized(
                site, weight if divisor is None else weight / divisor[:, None], granularity, signed
            )
        self._made[key] = made  # the last one used is the last to go
        while sum(kept.values.nbytes for kept in self._made.values()) > self._room and len(self._made) > 1:
            del self._made[next(iter(self._made))]
        return made

    def _quantized(self, site: Site, weight: Array, granularity: str | None, signed: bool) -> Int8Weight:
        # Without an int8 dot product, oneDNN halves the weights that meet signed activations.
        limit = Limit.EVEN if signed and self._limit is Limit.PAIRS else self._limit
        made = quantize_weight(site.by_output(weight)[0], granularity, limit)
        reach = made.scales * np.float32(LARGEST)
        return Int8Weight(
            site.from_output(made.values, weight.shape), reach if granularity == "per_channel" else reach[0]
        )

    def correction(
        self,
        site: Site,
        granularity: str | None,
        stats: TensorStats,
        divisor: Array | None = None,
        *,
        signed: bool,
    ) -> Array:
        """What to add to the bias for what rounding the weight does on average."""
        key = (
            site.op.name,
            str(granularity),
            signed,
            b"" if divisor is None else divisor.tobytes(),
            stats.channel_mean.tobytes(),
        )
        if key not in self._shifts:
            dequantized = self.int8(site, granularity, divisor, signed=signed).floats()
            weight, groups = site.by_output(site.weights(self._graph))
            meant = site.by_output(dequantized if divisor is None else dequantized * divisor[:, None])[0]
            self._shifts[key] = bias_correction(stats, weight, meant, groups)
        return self._shifts[key]

    def bf16(self, site: Site, name: str) -> NodeDef:
        """A bfloat16 Const of the weight, [K, N] for a matmul."""
        return constant(name, site.weights(self._graph).astype(ml_dtypes.bfloat16), dtypes.bfloat16)
