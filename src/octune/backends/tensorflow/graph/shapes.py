"""Static shapes of a graph's tensors, as TensorFlow infers them.

    shapes = Shapes(graph, library)
    shapes["dense/MatMul:0"]         # (None, 768); None for a tensor of unknown rank
    Shapes(graph, library, {"x:0": array})      # the shapes that they have for these inputs

Large constants are replaced by placeholders of their shape first: inference needs the values of small ones
only, and a BERT's weights take longer to import than everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.graph.graph import Array
from octune.errors import ModelError

__all__ = ["Shape", "Shapes"]

Shape = tuple[int | None, ...]
LONGEST_SHAPE = 256  # elements; a constant with more of them is not a shape


class Shapes:
    """Tensor name -> static shape."""

    def __init__(
        self, nodes: Iterable[NodeDef], like: GraphDef, fed: Mapping[str, Array] | None = None
    ) -> None:
        small = GraphDef()
        small.library.CopyFrom(like.library)
        small.versions.CopyFrom(like.versions)
        small.node.extend(_small(node) for node in nodes)
        self._given = {name: tuple(array.shape) for name, array in (fed or {}).items()}
        self._graph = tf.Graph()
        with self._graph.as_default():
            given = {
                name: tf.compat.v1.placeholder(array.dtype, array.shape, name=f"octune_fed_{number}")
                for number, (name, array) in enumerate((fed or {}).items())
            }
            try:
                tf.import_graph_def(small, input_map=given, name="")
            except ValueError as error:
                raise ModelError(f"TensorFlow {tf.__version__} cannot read the graph: {error}") from error

    def __getitem__(self, tensor: str) -> Shape | None:
        if tensor in self._given:
            return self._given[tensor]
        try:
            shape = self._graph.get_tensor_by_name(tensor).shape
        except KeyError:
            return None
        return None if shape.rank is None else tuple(shape.as_list())

    def dtype(self, tensor: str) -> tf.DType:
        """The type of a tensor's elements."""
        return self._graph.get_tensor_by_name(tensor).dtype.base_dtype


def _small(node: NodeDef) -> NodeDef:
    """A node, or a placeholder for a large constant."""
    if node.op != "Const":
        return node
    value = node.attr["value"].tensor
    elements = 1
    for dim in value.tensor_shape.dim:
        elements *= dim.size
    if elements <= LONGEST_SHAPE:
        return node
    made = NodeDef(name=node.name, op="Placeholder", input=node.input)
    made.attr["dtype"].CopyFrom(node.attr["dtype"])
    made.attr["shape"].CopyFrom(AttrValue(shape=value.tensor_shape))
    return made
