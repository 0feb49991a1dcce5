"""TensorFlow models of any maker, opened to be run: graphs by a session, everything else by its signature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef

from octune.backends.batches import Fitting, Inputs, Slot
from octune.backends.litert.opened import OpenedTflite
from octune.backends.opened import Array, Covered, Opened, Port, Source, bytes_of, free_rows
from octune.backends.tensorflow.clean.fold import frames
from octune.backends.tensorflow.graph.graph import Graph, attribute, node_of
from octune.backends.tensorflow.graph.sessions import Sessions, set_threads
from octune.backends.tensorflow.model import nested
from octune.backends.tensorflow.model.freeze import as_graph, ends, freeze_function
from octune.backends.tensorflow.model.handover import Handover, take
from octune.backends.tensorflow.model.lite import lite_of
from octune.backends.tensorflow.model.metagraph import DEFAULT_SIGNATURE, MetaGraph
from octune.backends.tensorflow.model.storage import load
from octune.backends.tensorflow.probe.work import counted
from octune.backends.terms import Settings
from octune.coverage import Work
from octune.errors import ModelError

__all__ = ["covered", "opened"]

FLOAT = {
    "MatMul", "_FusedMatMul", "Conv1D", "Conv2D", "Conv3D", "Conv2DBackpropInput", "DepthwiseConv2dNative",
    "_FusedConv2D", "_FusedDepthwiseConv2dNative",
}  # fmt: skip
PRODUCTS = {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "XlaDotV2"}
QUANTIZED = ("Quantized", "_Quantized", "_FusedQuantized", "_MklQuantized", "UniformQuantized")
STORED = {"Const", "ReadVariableOp", "VariableV2"}


def opened(model: Any, source: Source) -> Opened:
    """A graph, or anything with a signature; Keras models and functions get one."""
    if (lite := lite_of(model)) is not None:
        return OpenedTflite(lite.interpreter, source, len(lite.content))
    if source.threads:
        set_threads(source.threads)
    if isinstance(model, GraphDef):
        model = as_graph(model)
    if isinstance(model, tf.Graph):
        return OpenedGraph(model, source)
    if not isinstance(getattr(model, "signatures", None), Mapping):
        path = source.path
        if path is not None and (path / "saved_model.pb").exists() and not isinstance(model, MetaGraph):
            model = _saved(path, source)
        else:
            taken = take(model, Settings())
            model = replace(taken.handover, kind="saved_model").build(taken.frozen.graph_def)
    return OpenedSignature(model, source)


def _saved(path: Path, source: Source) -> Any:
    """The SavedModel in a folder; in one that Octune wrote, the signature that is the model."""
    if source.metadata is None:
        return tf.saved_model.load(str(path))
    form = replace(Handover.from_json(source.metadata["form"]), kind="saved_model")
    return load(path, {"form": form.to_json()}, trusted=source.trusted)


class OpenedGraph(Opened):
    """A graph in a session, with the inputs and outputs that it was saved with, or seems to have."""

    def __init__(self, graph: Any, source: Source) -> None:
        self._graph, self._sessions = graph, Sessions(source.threads)
        if source.metadata is not None:
            form = Handover.from_json(source.metadata["form"])
            feeds, self._fetches = form.inputs, form.outputs
        else:
            feeds, self._fetches = ends(graph, (), ())
        tensors = {name: graph.get_tensor_by_name(tensor) for name, tensor in feeds.items()}
        slots = [_slot(name, tensor.name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        free, rows = free_rows(slots)
        size = _constants(graph) if source.path is None or source.path.is_dir() else bytes_of(source.path)
        ops = covered([graph.as_graph_def()])
        super().__init__(source, list(map(Port.of, slots)), Fitting(free), size=size, ops=ops, rows=rows)

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        return self._sessions.run(self._graph, self._fetches, inputs.kwargs)

    def _work(self, inputs: Inputs) -> Work:
        return _computed(self._graph.as_graph_def(), inputs)

    def close(self) -> None:
        self._sessions.close()


class OpenedSignature(Opened):
    """A SavedModel, called by its signature as a server would."""

    def __init__(self, model: Any, source: Source) -> None:
        signatures = dict(model.signatures)
        if not signatures:
            raise ModelError(
                f"{source.name} has no signature, so its inputs are not known. Save it with signatures=."
            )
        self._model = model  # owns the variables that its functions read
        self._function = signatures.get(DEFAULT_SIGNATURE) or signatures[min(signatures)]
        specs = nested.leaves(self._function.structured_input_signature)
        slots = [_slot(spec.name, spec.name, spec.dtype, spec.shape) for spec in specs]
        free, rows = free_rows(slots)
        path = source.path
        files = (
            [] if path is None else [path / "saved_model.pb", path / "variables"] if path.is_dir() else [path]
        )
        kept = [file for file in files if file.exists()]
        graph = self._function.graph
        super().__init__(
            source,
            list(map(Port.of, slots)),
            Fitting(free),
            size=bytes_of(*kept) if kept else _constants(graph) + _variables(self._function.variables),
            ops=covered(_bodies(graph.as_graph_def())),
            rows=rows,
        )

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        tensors = {name: tf.constant(array) for name, array in inputs.kwargs.items()}
        positional, _ = self._function.structured_input_signature
        results = (
            self._function(*(tensors[spec.name] for spec in positional))
            if positional
            else self._function(**tensors)
        )
        return {name: np.asarray(value) for name, value in results.items()}

    def _work(self, inputs: Inputs) -> Work:
        names = [port.name for port in self.inputs]
        outputs = [str(number) for number, _ in enumerate(self._function.outputs)]
        frozen = freeze_function(self._function, names, outputs)
        fed = {frozen.inputs[name]: array for name, array in inputs.kwargs.items()}
        return _computed(frozen.graph_def, Inputs((), fed))


def _computed(graph_def: GraphDef, inputs: Inputs) -> Work:
    """What runs for these inputs; int8 ops are called so, and those in bfloat16."""
    graph = Graph(graph_def.node, ())
    names = {node.name: dtype for node in graph if (dtype := _computes_in(node)) != "fp32"}
    return counted(graph, graph_def, names, frames(graph), inputs)


def _computes_in(node: Any) -> str:
    if node.op.startswith(QUANTIZED):
        return "int8"
    return "bf16" if attribute(node, "T").type == types_pb2.DT_BFLOAT16 else "fp32"


def _slot(name: str, tensor: str, dtype: Any, shape: Any) -> Slot:
    numbers = np.dtype(object) if dtype == tf.string else np.dtype(dtype.as_numpy_dtype)
    return Slot(name, tensor, numbers, tuple(shape) if shape.rank is not None else None)


def _constants(graph: Any) -> int:
    """Bytes of a graph's own tensors."""
    return sum(
        operation.outputs[0].shape.num_elements() * operation.outputs[0].dtype.size
        for operation in graph.get_operations()
        if operation.type == "Const" and operation.outputs[0].dtype != tf.string
    )


def _variables(variables: Iterable[Any]) -> int:
    return sum(one.shape.num_elements() * one.dtype.size for one in variables if one.shape.is_fully_defined())


def _bodies(graph_def: GraphDef) -> Iterator[Any]:
    """The graph itself, and the functions that it may call."""
    yield graph_def
    yield from graph_def.library.function


def covered(bodies: Iterable[Any]) -> Covered:
    """How many of the ops with weights compute in int8, in graphs and bodies of functions."""
    int8 = total = 0
    for body in bodies:
        nodes: list[Any] = list(body.node if isinstance(body, GraphDef) else body.node_def)
        makers = {node.name: node for node in nodes}
        for node in nodes:
            if node.op.startswith(QUANTIZED) and (
                "MatMul" in node.op or "Conv" in node.op or "Dot" in node.op
            ):
                int8, total = int8 + 1, total + 1
            elif node.op in FLOAT:
                total += 1
            elif node.op in PRODUCTS:
                # A product of two activations has no weight.
                read = [makers.get(node_of(name.split(":")[0])) for name in node.input[:2]]
                total += any(maker is not None and maker.op in STORED for maker in read)
    return Covered(int8, total)
