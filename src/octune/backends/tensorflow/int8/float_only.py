"""Ops with weights, and products of activations, for which stock TensorFlow has no int8 kernel worth using:
they are listed, with that as the reason.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.dense import BATCHED
from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.graph.graph import Graph
from octune.backends.tensorflow.graph.shapes import Shapes

__all__ = ["LISTED", "float_only"]

NO_KERNEL = "TensorFlow has no int8 kernel for "
# op -> its kind, and why it stays in float
CONVOLUTIONS = {
    "Conv3DBackpropInputV2": (
        "conv3d_transpose",
        NO_KERNEL + "transposed convolutions in three dimensions",
    ),
}
PRODUCT = ("attention", NO_KERNEL + "batched products of two activations")
TABLE = ("embedding", "TensorFlow reads a float table faster than it reads an int8 one and scales its rows")
GATHERS = ("Gather", "GatherV2", "ResourceGather")
SMALL_TABLE = 1 << 14
LISTED = (*(kind for kind, _ in CONVOLUTIONS.values()), PRODUCT[0], TABLE[0])  # kinds, as plans call them


def float_only(graph: Graph, shapes: Shapes, made: NodeDef) -> tuple[str, str, int] | None:
    """The kind of such an op, why it stays in float, and how many weights it has; None if it is not one."""
    if made.op not in (*CONVOLUTIONS, *BATCHED, *GATHERS) or shapes.dtype(f"{made.name}:0") != tf.float32:
        return None
    values = [value_of(graph, read) for read in graph.inputs(made)[:2]]
    if made.op in CONVOLUTIONS:
        return *CONVOLUTIONS[made.op], 0 if values[1] is None else int(values[1].size)
    if made.op in BATCHED:
        return (*PRODUCT, 0) if values == [None, None] else None
    table = values[0]
    if table is None or table.ndim != 2 or table.size < SMALL_TABLE:
        return None
    return *TABLE, int(table.size)
