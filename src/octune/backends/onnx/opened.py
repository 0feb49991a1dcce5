"""ONNX models of any maker, opened to be run: fp32, Q/DQ, QOperator or dynamically quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from octune.backends.batches import Fitting, Inputs, Slot
from octune.backends.onnx.branches import open_branches
from octune.backends.onnx.files import GRAPH
from octune.backends.onnx.graph import Model, View, subgraphs
from octune.backends.onnx.ir import OpenedIR
from octune.backends.onnx.runtimes import ONNX_RUNTIME, OnnxModel, outputs_by_name
from octune.backends.onnx.source import inferred, read, separated
from octune.backends.onnx.work import counted
from octune.backends.opened import Array, Covered, Opened, Port, Source, bytes_of, free_rows
from octune.coverage import Work
from octune.errors import ModelError
from octune.machine import probe_machine

__all__ = ["covered", "opened"]

FLOAT = {"MatMul", "Gemm", "Conv", "ConvTranspose", "FusedMatMul", "FusedConv", "FusedGemm"}
# What has weights inside, as one node.
FLOAT_WHOLE = {"Attention", "LSTM", "GRU", "RNN", "MatMulNBits"}
INT8 = {
    "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "QAttention",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM",
}  # fmt: skip
# What stands between a stored weight and the op that reads it.
PASSED = {
    "DequantizeLinear",
    "QuantizeLinear",
    "Transpose",
    "Identity",
    "Reshape",
    "Cast",
    "Unsqueeze",
    "Squeeze",
}


def opened(model: OnnxModel | ModelProto | Path | str, source: Source) -> Opened:
    """An ``.onnx`` file or one of OpenVINO's, a protobuf, or a model that already runs."""
    threads = source.threads or probe_machine().cores
    if isinstance(model, OnnxModel):
        if model.graph is not None:
            return OpenedOnnx(model, source, _known(model.graph))
        if source.path is None:
            return OpenedOnnx(model, source, Facts(0))
        return OpenedOnnx(model, source, _read(source.path / GRAPH))
    if isinstance(model, ModelProto):
        graph = separated(model, None)
        running = ONNX_RUNTIME.build(graph, threads)
        return OpenedOnnx(running, source, _known(graph))
    if Path(model).suffix == ".xml":
        return OpenedIR(Path(model), source)
    facts = _read(Path(model))
    return OpenedOnnx(ONNX_RUNTIME.read(Path(model), threads), source, facts)


@dataclass(frozen=True)
class Facts:
    """What a graph says of itself: bytes, how much of it is int8, and how many ids each input may hold;
    ``graph`` is the graph, or the file that it can be read from again.
    """

    size: int
    ops: Covered | None = None
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    graph: Model | Path | None = None


class OpenedOnnx(Opened):
    """A session, with the types and shapes that its graph declares."""

    def __init__(self, model: OnnxModel, source: Source, facts: Facts) -> None:
        slots = [
            Slot(port.name, port.name, _dtype(port.type), _shape(port.shape)) for port in model.get_inputs()
        ]
        free, rows = free_rows(slots)
        ports = [Port.of(slot, facts.vocabularies.get(slot.name)) for slot in slots]
        super().__init__(source, ports, Fitting(free), size=facts.size, ops=facts.ops, rows=rows)
        self._model: OnnxModel | None = model
        self._graph, self._threads = facts.graph, source.threads

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        if self._model is None:
            raise ModelError(f"{self.name} is closed.")
        values = self._model.run(None, inputs.kwargs)
        return outputs_by_name((port.name for port in self._model.get_outputs()), values)

    def _work(self, inputs: Inputs) -> Work | None:
        if self._graph is None:
            return None
        graph = self._graph
        model = separated(read(graph), graph.parent) if isinstance(graph, Path) else graph
        return _computed(model, inputs, self._threads)

    def close(self) -> None:
        self._model = self._graph = None


def _computed(model: Model, inputs: Inputs, threads: int | None) -> Work:
    """What runs for these inputs, in the branches that they take; int8 ops are called so."""
    view = View(open_branches(model, inputs.kwargs)[0])
    view.learn(inferred(view.model))
    makers = {output: node for node in view.nodes for output in node.output}
    int8 = {
        index: "int8"
        for index, node in enumerate(view.nodes)
        if node.op_type in INT8
        or (node.op_type in FLOAT and all(_dequantized(name, makers) for name in node.input[:2]))
    }
    return counted(view, int8, inputs, threads, lambda name, node: "int8" if node.op_type in INT8 else None)


def _dtype(kind: str) -> np.dtype[Any]:
    """The numpy type of what ONNX Runtime calls ``tensor(int64)``."""
    inner = kind.removeprefix("tensor(").removesuffix(")")
    named = {"float": "float32", "double": "float64", "string": "object"}.get(inner, inner)
    try:
        return np.dtype(named)
    except TypeError as error:
        raise ModelError(f"An input of the model is a {kind}, which numpy has no type for.") from error


def _shape(shape: Any) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) and size > 0 else None for size in shape)


def _known(graph: Model) -> Facts:
    rows = {name: len(array) for name, array in graph.tensors.items() if array.ndim == 2}
    return Facts(graph.nbytes, covered(graph.proto, graph.tensors), vocabularies(graph.proto, rows), graph)


def _read(path: Path) -> Facts:
    """Facts of a file; its bytes are those of the files beside it as well that hold its tensors."""
    proto = read(path)
    beside = {
        path.parent / item.value
        for tensor in proto.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for item in tensor.external_data
        if item.key == "location"
    }
    rows = {tensor.name: tensor.dims[0] for tensor in proto.graph.initializer if len(tensor.dims) == 2}
    return Facts(bytes_of(path, *beside), covered(proto), vocabularies(proto, rows), path)


def vocabularies(proto: ModelProto, rows: Mapping[str, int]) -> dict[str, int]:
    """How many ids an input may hold that looks up rows of a table; ``rows`` of the tables there are."""
    origin = {item.name: item.name for item in proto.graph.input}
    found: dict[str, int] = {}
    for node in proto.graph.node:  # in the order of computation
        if node.op_type in ("Cast", "Identity") and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in rows and node.input[1] in origin:
            name = origin[node.input[1]]
            found[name] = min(rows[node.input[0]], found.get(name, rows[node.input[0]]))
    return found


def covered(proto: ModelProto, stored: Any = ()) -> Covered:
    """How many of the ops with weights compute in int8; ``stored`` names tensors kept beside the graph."""
    int8 = total = 0
    graphs: list[tuple[GraphProto, dict[str, NodeProto], set[str]]] = [(proto.graph, {}, {*stored})]
    while graphs:
        graph, makers, constants = graphs.pop()
        # The graphs inside a node read what is outside of them.
        makers = makers | {output: node for node in graph.node for output in node.output}
        constants = constants | {tensor.name for tensor in graph.initializer}
        graphs.extend((inner, makers, constants) for node in graph.node for inner in subgraphs(node))
        for node in graph.node:
            found = _computes_in_int8(node, makers, constants)
            total += found is not None
            int8 += found is True
    return Covered(int8, total)


def _computes_in_int8(node: NodeProto, makers: dict[str, NodeProto], constants: set[str]) -> bool | None:
    """None for an op without weights."""
    if node.op_type in INT8:
        # A product of two activations has no weight. QLinear ops read a scale and a zero point in between.
        slots = (0, 3) if node.op_type.startswith("QLinear") or node.op_type == "QGemm" else (0, 1)
        return True if any(_constant(node.input[slot], makers, constants) for slot in slots) else None
    if node.op_type in FLOAT_WHOLE:
        return False
    if node.op_type not in FLOAT or not any(_constant(name, makers, constants) for name in node.input[:2]):
        return None
    # In a Q/DQ graph the kernel is int8 where both operands were int8.
    return all(_dequantized(name, makers) for name in node.input[:2])


def _constant(name: str, makers: dict[str, NodeProto], constants: set[str]) -> bool:
    while name not in constants:
        node = makers.get(name)
        if node is None:
            return False
        if node.op_type == "Constant":
            return True
        if node.op_type not in PASSED:
            return False
        name = node.input[0]
    return True


def _dequantized(name: str, makers: dict[str, NodeProto]) -> bool:
    node = makers.get(name)
    while node is not None and node.op_type in PASSED:
        if node.op_type == "DequantizeLinear":
            return True
        node = makers.get(node.input[0])
    return False
