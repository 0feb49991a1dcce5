"""Saving models as plain TensorFlow, and building them again.

A graph becomes ``model.pb``, a frozen GraphDef. Everything that is called becomes a SavedModel: the folder
itself can be given to ``tf.saved_model.load`` or to a server. What LiteRT runs becomes ``model.tflite``,
whatever it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from octune.backends.tensorflow.model import nested
from octune.backends.tensorflow.model.callables import GraphCallable, call_shaped, flat_function
from octune.backends.tensorflow.model.freeze import LARGEST_GRAPH, as_graph
from octune.backends.tensorflow.model.handover import Handover
from octune.backends.tensorflow.model.lite import Lite, as_model, lite_of
from octune.backends.tensorflow.model.metagraph import DEFAULT_SIGNATURE
from octune.backends.tensorflow.model.strangers import harmless, signature_graph
from octune.backends.terms import Servable, Tensor
from octune.errors import ArtifactError, summary
from octune.machine import probe_machine

__all__ = ["load", "read_graph_def", "save", "servable", "write_served"]

GRAPH, LITE = "model.pb", "model.tflite"


def save(model: Any, handover: Handover, folder: Path) -> dict[str, Any]:
    """Write the model's files; the plain data that comes back is what :func:`load` needs."""
    if (lite := lite_of(model)) is not None:
        (folder / LITE).write_bytes(lite.content)
    elif isinstance(model, tf.Graph):
        (folder / GRAPH).write_bytes(_serialized(model.as_graph_def()))
    else:
        function = _flat(model, handover)
        module = tf.Module(name="octune")
        module.serve = function
        try:
            tf.saved_model.save(module, str(folder), signatures={handover.signature: function})
        except (ValueError, tf.errors.OpError) as error:
            raise ArtifactError(f"The model could not be saved as a SavedModel: {summary(error)}") from error
    return {"form": handover.to_json(), "tensorflow": tf.__version__}


def _flat(model: Any, handover: Handover) -> Any:
    """The model's flat function: one tensor for each argument name."""
    if isinstance(model, GraphCallable):
        return model.signatures[handover.signature]

    def call(*flat: Any) -> dict[str, Any]:
        return call_shaped(
            model, handover.takes, handover.gives, dict(zip(handover.inputs, flat, strict=True))
        )

    named = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
        for name, tensor in zip(handover.inputs, model.inputs, strict=False)
    ]
    return tf.function(call, input_signature=named, autograph=False).get_concrete_function()


def _serialized(graph_def: GraphDef) -> bytes:
    if graph_def.ByteSize() > LARGEST_GRAPH:
        raise ArtifactError(
            f"The graph has {graph_def.ByteSize() / 2**30:.1f} GB; a GraphDef file holds 2 GB. Quantize more "
            "of it, or split the model."
        )
    return bytes(graph_def.SerializeToString(deterministic=True))


def load(folder: Path, metadata: Mapping[str, Any], *, trusted: bool = False) -> Any:
    """The model that was saved, of the kind that it was; of a stranger's, what does nothing but compute."""
    handover = Handover.from_json(metadata["form"])
    try:
        if (folder / LITE).exists():
            return as_model(_lite(folder), handover)
        if handover.kind == "graph":
            graph_def = read_graph_def(folder / GRAPH)
            return as_graph(graph_def if trusted else harmless(graph_def, str(folder / GRAPH)))
        if not trusted:
            return handover.wrap(signature_graph(folder, handover))
        loaded = tf.saved_model.load(str(folder))
        return handover.wrap(loaded.signatures[handover.signature])
    except (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        raise ArtifactError(
            f"{folder} cannot be loaded by TensorFlow {tf.__version__}: {summary(error)}"
        ) from error


def _lite(folder: Path) -> Lite:
    return Lite((folder / LITE).read_bytes(), probe_machine().cores)


def servable(folder: Path, metadata: Mapping[str, Any], *, trusted: bool) -> Servable:
    """A SavedModel with the signature that servers call, whatever kind of model was saved; or LiteRT's
    file.
    """
    if (folder / LITE).exists():
        lite, file = _lite(folder), folder / LITE
        write = {"litert": lambda place: shutil.copyfile(file, place / LITE)}
        return Servable(write, list(lite.takes.values()), list(lite.gives.values()))
    handover = Handover.from_json(metadata["form"])
    function = _signature(folder, handover, trusted=trusted)
    return Servable(
        {"savedmodel": partial(write_served, function)},
        [_tensor(spec.name, spec) for spec in nested.leaves(function.structured_input_signature)],
        [_tensor(name, tensor) for name, tensor in function.structured_outputs.items()],
    )


def _signature(folder: Path, handover: Handover, *, trusted: bool) -> Any:
    """The saved model as a concrete function with named tensors in and out."""
    try:
        if handover.kind != "graph" and not trusted:
            return signature_graph(folder, handover)
        if handover.kind != "graph":
            return tf.saved_model.load(str(folder)).signatures[handover.signature]
        graph_def = read_graph_def(folder / GRAPH)
        if not trusted:
            harmless(graph_def, str(folder / GRAPH))
        return flat_function(graph_def, handover.inputs, handover.outputs)
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        raise ArtifactError(
            f"{folder} cannot be called with tensors by TensorFlow {tf.__version__}: {summary(error)}"
        ) from error


def write_served(function: Any, folder: Path) -> None:
    """Write a concrete function as a SavedModel with the signature that servers call."""
    module = tf.Module(name="octune")
    module.serve = function
    tf.saved_model.save(module, str(folder), signatures={DEFAULT_SIGNATURE: function})


def _tensor(name: str, tensor: Any) -> Tensor:
    shape = tuple(tensor.shape) if tensor.shape.rank is not None else ()
    return Tensor(name, str(np.dtype(tensor.dtype.as_numpy_dtype)), shape)


def read_graph_def(path: Path) -> GraphDef:
    """A GraphDef from a ``.pb`` file; ValueError says what is wrong with it."""
    if path.stat().st_size > LARGEST_GRAPH:
        raise ValueError(
            f"{path} is larger than 2 GB, which is more than a GraphDef can hold. Export the model as a "
            "SavedModel"
        )
    graph_def = GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
    except OSError:
        raise
    except (
        Exception
    ) as error:  # protobuf's DecodeError has no public home that is the same in all its versions
        raise ValueError(f"{path} is not a GraphDef ({error})") from error
    if not graph_def.node:
        raise ValueError(f"{path} is a GraphDef without a node")
    return graph_def
