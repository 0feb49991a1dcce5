"""int8 weights, made once for each op, granularity and smoothing, however many plans ask for them.

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

__all__ = ["Int8Weight", "Weights"]

LEVELS = 127


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """``values * reach / 127`` is the weight; ``reach`` has one number for every output channel, or one for all."""

    values: npt.NDArray[np.int8]
    reach: npt.NDArray[np.float32]

    def floats(self) -> Array:
        """The float weights that the int8 ones stand for."""
        return self.values.astype(np.float32) * (self.reach / np.float32(LEVELS)).reshape(_channels(self.values, self.reach))


def _channels(values: Array, reach: Array) -> tuple[int, ...]:
    """How a vector of channels lies along the last axes of a weight; a depthwise one has two of them."""
    if reach.ndim == 0:
        return ()
    return values.shape[2:] if reach.size != values.shape[-1] else (values.shape[-1],)


class Weights:
    """Keeps what it made; the float weights themselves stay in the graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[str, str, bytes], Int8Weight] = {}
        self._halves: dict[str, NodeDef] = {}

    def int8(self, site: Site, granularity: str | None, divisor: Array | None = None) -> Int8Weight:
        """The weight of a site, each of its rows divided by ``divisor`` first."""
        key = (site.op.name, str(granularity), b"" if divisor is None else divisor.tobytes())
        if key not in self._made:
            weight = site.weights(self._graph)
            if divisor is not None:
                weight = weight / divisor[:, None]
            self._made[key] = _quantized(weight, site, granularity)
        return self._made[key]

    def bf16(self, site: Site, name: str) -> NodeDef:
        """A bfloat16 Const of the weight, in the orientation that the op has."""
        if site.op.name not in self._halves:
            self._halves[site.op.name] = constant(name, site.weights(self._graph).astype(ml_dtypes.bfloat16), dtypes.bfloat16)
        made = self._halves[site.op.name]
        made.name = name
        return made


def _quantized(weight: Array, site: Site, granularity: str | None) -> Int8Weight:
    # Every axis but those of the output channels: the last one, or the last two of a depthwise convolution.
    axes = (0, 1) if site.op.kind == "depthwise_conv2d" else tuple(range(weight.ndim - 1))
    reach = np.abs(weight).max(axis=axes if granularity == "per_channel" else None)
    reach = np.maximum(reach, 1e-12).astype(np.float32)
    values = np.rint(weight * (LEVELS / reach)).clip(-LEVELS, LEVELS).astype(np.int8)
    return Int8Weight(values, reach.reshape(-1) if reach.ndim else reach)
