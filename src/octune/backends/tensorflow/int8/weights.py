"""int8 weights, made once for each op, granularity and smoothing as long as there is room, however many plans
ask for them.

cache = Weights(graph, Limit.PAIRS)
made = cache.int8(fused, scheme, signed=False)
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
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.calibration import TensorStats
from octune.int8 import LARGEST, Limit
from octune.plan import Scheme
from octune.repair import repairs_of

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
        """The float weights that the int8 ones stand for, as the kernels read them."""
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
        self._made: dict[tuple[object, ...], Int8Weight] = {}
        self._shifts: dict[tuple[object, ...], Array] = {}

    def int8(
        self, fused: FusedOp, scheme: Scheme, multiplier: Array | None = None, *, signed: bool
    ) -> Int8Weight:
        """The weight of an op, for an input whose channels are multiplied by ``multiplier``. ``signed``: it
        is int8, not uint8.
        """
        key = _key(fused, scheme, multiplier, signed)
        made = self._made.pop(key, None) or self._quantized(fused, scheme, multiplier, signed)
        self._made[key] = made  # the one used last is removed last
        while sum(kept.values.nbytes for kept in self._made.values()) > self._room and len(self._made) > 1:
            del self._made[next(iter(self._made))]
        return made

    def _quantized(
        self, fused: FusedOp, scheme: Scheme, multiplier: Array | None, signed: bool
    ) -> Int8Weight:
        floats = fused.weights(self._graph)
        # Without an int8 dot product, oneDNN halves the weights that meet signed activations.
        limit = Limit.EVEN if signed and self._limit is Limit.PAIRS else self._limit
        made = repairs_of(scheme).int8_weight(
            *fused.kind.by_output(floats), scheme.granularity, limit, multiplier
        )
        reach = made.scales * np.float32(LARGEST)
        return Int8Weight(
            fused.kind.from_output(made.values, floats.shape),
            reach if scheme.granularity == "per_channel" else reach[0],
        )

    def correction(
        self,
        fused: FusedOp,
        scheme: Scheme,
        stats: TensorStats,
        multiplier: Array | None = None,
        *,
        signed: bool,
    ) -> Array:
        """What the repairs of a scheme add to the bias."""
        key = (*_key(fused, scheme, multiplier, signed), scheme.repairs, stats.channel_mean.tobytes())
        if key not in self._shifts:
            dequantized, _ = fused.kind.by_output(
                self.int8(fused, scheme, multiplier, signed=signed).floats()
            )
            weight, groups = fused.kind.by_output(fused.weights(self._graph))
            self._shifts[key] = repairs_of(scheme).bias_shift(stats, weight, dequantized, groups, multiplier)
        return self._shifts[key]

    def bf16(self, fused: FusedOp, name: str) -> NodeDef:
        """A bfloat16 Const of the weight, [K, N] for a matmul."""
        return constant(name, fused.weights(self._graph).astype(ml_dtypes.bfloat16), dtypes.bfloat16)


def _key(fused: FusedOp, scheme: Scheme, multiplier: Array | None, signed: bool) -> tuple[object, ...]:
    """What an int8 weight depends on."""
    smoothing = b"" if multiplier is None else multiplier.tobytes()
    return fused.op.name, scheme.granularity, repairs_of(scheme).weight_names, signed, smoothing
