"""int8 weights, made once for each op, granularity and smoothing as long as there is room, however many plans ask for them.

cache = Weights(graph)
made = cache.int8(site, "per_channel")
made.values, made.reach             # int8, and the largest absolute value of every channel
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes

from octune.backends.tensorflow.emit import constant
from octune.backends.tensorflow.graph import Array, Graph
from octune.backends.tensorflow.site import Site
from octune.calibration import TensorStats
from octune.repair import bias_correction

__all__ = ["Int8Weight", "Weights"]

LEVELS = 127
LIMIT = 1 << 30  # bytes: all of BERT-large in three schemes


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """``values * reach / 127`` is the weight; ``reach`` has one number for every output channel, or one for all."""

    values: npt.NDArray[np.int8]
    reach: npt.NDArray[np.float32]

    def floats(self) -> Array:
        """The float weights that the int8 ones stand for."""
        return self.values.astype(np.float32) * self.scale()

    def scale(self) -> Array:
        """What ``values`` are multiplied by for that."""
        return (self.reach / np.float32(LEVELS)).reshape(_channels(self.values, self.reach))


def _channels(values: Array, reach: Array) -> tuple[int, ...]:
    """How a vector of channels lies along the last axes of a weight; a depthwise one has two of them."""
    if reach.ndim == 0:
        return ()
    return values.shape[2:] if reach.size != values.shape[-1] else (values.shape[-1],)


class Weights:
    """Keeps the last that it made; the float weights themselves stay in the graph."""

    def __init__(self, graph: Graph, limit: int = LIMIT) -> None:
        self._graph, self._limit = graph, limit
        self._made: dict[tuple[str, str, bytes], Int8Weight] = {}
        self._shifts: dict[tuple[str, str, bytes, bytes], Array] = {}

    def int8(self, site: Site, granularity: str | None, divisor: Array | None = None) -> Int8Weight:
        """The weight of a site, what reads each input channel divided by ``divisor`` first."""
        key = (site.op.name, str(granularity), b"" if divisor is None else divisor.tobytes())
        made = self._made.pop(key, None)
        if made is None:
            weight = site.weights(self._graph)
            made = _quantized(weight if divisor is None else weight / divisor[:, None], site, granularity)
        self._made[key] = made  # the last one used is the last to go
        while sum(kept.values.nbytes for kept in self._made.values()) > self._limit and len(self._made) > 1:
            del self._made[next(iter(self._made))]
        return made

    def correction(self, site: Site, granularity: str | None, stats: TensorStats, divisor: Array | None = None) -> Array:
        """What to add to the bias for what rounding the weight does on average."""
        key = (site.op.name, str(granularity), b"" if divisor is None else divisor.tobytes(), stats.channel_mean.tobytes())
        if key not in self._shifts:
            dequantized = self.int8(site, granularity, divisor).floats()
            weight, groups = site.by_output(site.weights(self._graph))
            meant = site.by_output(dequantized if divisor is None else dequantized * divisor[:, None])[0]
            self._shifts[key] = bias_correction(stats, weight, meant, groups)
        return self._shifts[key]

    def bf16(self, site: Site, name: str) -> NodeDef:
        """A bfloat16 Const of the weight, [K, N] for a matmul."""
        return constant(name, site.weights(self._graph).astype(ml_dtypes.bfloat16), dtypes.bfloat16)


def _quantized(weight: Array, site: Site, granularity: str | None) -> Int8Weight:
    # Every axis but those of the output channels: the last one, or the last two of a depthwise convolution.
    axes = (0, 1) if site.op.kind == "depthwise_conv2d" else tuple(range(weight.ndim - 1))
    reach = np.abs(weight).max(axis=axes if granularity == "per_channel" else None)
    reach = np.maximum(reach, 1e-12).astype(np.float32)
    values = np.rint(weight * (LEVELS / reach)).clip(-LEVELS, LEVELS).astype(np.int8)
    return Int8Weight(values, reach.reshape(-1) if reach.ndim else reach)
