"""SavedModels of any age, read as TensorFlow Serving reads them: the graph of a signature and the values of
its variables.

    model = MetaGraph.read(folder)
    model.frozen, model.signature

``tf.saved_model.load`` rebuilds the Python objects that were saved, and cannot do so for all that earlier
versions of Keras have written. A signature does not need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.util import deprecation

from octune.backends.tensorflow.graph.graph import FrozenGraph, node_of
from octune.backends.tensorflow.model.freeze import freeze_session, upstream
from octune.errors import ModelError, plural, short

__all__ = ["DEFAULT_SIGNATURE", "MetaGraph", "chosen", "left_out"]

DEFAULT_SIGNATURE = "serving_default"
INITIALISES = (
    "__saved_model_init_op"  # a signature that every SavedModel of TensorFlow 2 has, and nobody calls
)
SERVE = tf.saved_model.SERVING


@dataclass(frozen=True)
class MetaGraph:
    """One signature of a SavedModel, frozen."""

    frozen: FrozenGraph
    signature: str
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> MetaGraph:
        """ModelError says why it cannot be used; errors of TensorFlow's loader pass through."""
        v1 = tf.compat.v1
        with v1.Session(graph=tf.Graph()) as session, deprecation.silence():
            meta = v1.saved_model.load(session, [SERVE], str(folder))
            signatures = {key: meta.signature_def[key] for key in meta.signature_def if key != INITIALISES}
            name = chosen(signatures, str(folder))
            feeds = _tensors(signatures[name].inputs)
            fetches = _tensors(signatures[name].outputs)
            frozen = freeze_session(session, tuple(feeds.values()), tuple(fetches.values()))
        graph_def = _with_placeholders(frozen.graph_def, signatures[name].inputs)
        graph_def = upstream(graph_def, [*fetches.values(), *feeds.values()])
        tables = [node.name for node in graph_def.node if "HashTable" in node.op]
        if tables:
            raise ModelError(
                f"{folder} reads lookup tables ({short(tables)}), which a frozen graph cannot hold. Export "
                "the part of the model that takes numbers."
            )
        return cls(FrozenGraph(graph_def, feeds, fetches), name, left_out(signatures, name))


def chosen(signatures: Mapping[str, Any], model: str = "The SavedModel") -> str:
    """The name of the signature that servers call, or of the first one."""
    if not signatures:
        raise ModelError(
            f"{model} has no signature, so its inputs are not known. Save it with signatures=, or give a "
            "concrete function: loaded.call.get_concrete_function(tf.TensorSpec(...))."
        )
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else min(signatures)


def left_out(signatures: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """What the user should know about the other signatures."""
    left = sorted(set(signatures) - {name})
    return (f"of the signatures, {name} is quantized; {', '.join(left)} is left out",) if left else ()


def _tensors(values: Mapping[str, Any]) -> dict[str, str]:
    """Argument or result -> the tensor that it is, in the order in which a loaded signature has them."""
    sparse = [key for key in values if not values[key].name]
    if sparse:
        raise ModelError(
            f"The signature has {plural(len(sparse), 'value')} that are not plain tensors: {short(sparse)}. "
            "Give a model that takes and returns dense tensors."
        )
    return {key: values[key].name for key in sorted(values)}


def _with_placeholders(graph_def: GraphDef, inputs: Mapping[str, Any]) -> GraphDef:
    """The graph with plain placeholders for what is fed: a signature may name any tensor, and one with a
    default among them.
    """
    infos = {node_of(info.name): info for info in inputs.values()}
    made = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.name in infos and node.op != "Placeholder":
            info = infos[node.name]
            node = NodeDef(name=node.name, op="Placeholder")
            node.attr["dtype"].type = info.dtype
            node.attr["shape"].shape.CopyFrom(info.tensor_shape)
        made.node.append(node)
    return made
