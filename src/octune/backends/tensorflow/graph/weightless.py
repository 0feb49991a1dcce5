"""A graph without its weights, which are fed to it at every run.

    weightless = without_weights(graph, frozen.graph_def)
    session.run(fetches, {**weightless.arrays, **feed})         # where session runs weightless.graph_def

TensorFlow keeps a constant four times in every session: in the graph, in a copy of it, in the part that a run
needs, and in the kernel. An aligned array that is fed is not copied at all. What calibrates, checks and
probes runs such a graph, so that a model of gigabytes is in memory once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.graph.emit import array_of, node
from octune.backends.tensorflow.graph.graph import Array

__all__ = ["Weightless", "without_weights"]

LEAST_FED = 1 << 16  # bytes; smaller constants stay in the graph
ALIGNMENT = 64  # what TensorFlow asks of memory that it uses as it is


@dataclass(frozen=True, slots=True)
class Weightless:
    """``arrays``: the constants that are now placeholders, by tensor."""

    graph_def: GraphDef
    arrays: dict[str, Array]


def without_weights(nodes: Iterable[NodeDef], like: GraphDef) -> Weightless:
    """Nodes as a graph whose large float constants come from outside."""
    rest = GraphDef(versions=like.versions, library=like.library)
    arrays: dict[str, Array] = {}
    for made in nodes:
        array = _weight(made)
        if array is None:
            rest.node.append(made)
        else:
            arrays[f"{made.name}:0"] = _aligned(array)
            rest.node.append(
                node(made.name, "Placeholder", (), dtype=tf.float32, shape=tf.TensorShape(array.shape))
            )
    return Weightless(rest, arrays)


def _weight(made: NodeDef) -> Array | None:
    if made.op != "Const" or made.input or made.attr["value"].tensor.dtype != tf.float32.as_datatype_enum:
        return None
    elements = int(np.prod([dim.size for dim in made.attr["value"].tensor.tensor_shape.dim], dtype=np.int64))
    return array_of(made) if 4 * elements >= LEAST_FED else None


def _aligned(array: Array) -> Array:
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made
