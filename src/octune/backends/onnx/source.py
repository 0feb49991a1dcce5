"""Opening ONNX models: from a file or a protobuf to a light graph in one normal form.

    model, notes = open_model("model.onnx")

Normal form: opset 13 or later, every node named, constants beside the graph, fp32, no Pad before and no
BatchNorm after a convolution. The file and the protobuf that the user brought are only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    version_converter,
)
from onnx.inliner import inline_local_functions

from octune.backends.batches import Slot
from octune.backends.onnx.affine import fold_affine
from octune.backends.onnx.constants import fold_constants
from octune.backends.onnx.files import check_beside, check_data
from octune.backends.onnx.graph import QDQ_OPSET, Array, Model, View, headed_like, subgraphs, unused
from octune.backends.onnx.half import in_fp32
from octune.backends.onnx.padding import fold_pads
from octune.errors import ModelError, UnsupportedError, plural, summary
from octune.states import rows_second

__all__ = [
    "batch_is_free",
    "declare_constants",
    "inferred",
    "input_slots",
    "normalised",
    "open_model",
    "read",
    "separated",
]

AGAIN = "Expected a file that an exporter or onnx.save has written: export or copy it again."

OLDEST_OPSET = 8
QUANTIZED = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger",
    "QLinearMatMul", "QLinearConv", "QLinearAdd", "QGemm", "QAttention", "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat", "MatMulNBits", "FakeQuantize", "DynamicQuantizeLSTM",
}  # fmt: skip


def open_model(source: str | Path | ModelProto) -> tuple[Model, list[str]]:
    """A model in normal form, and what the user should know about it."""
    folder = None
    if isinstance(source, str | Path):
        folder, source = Path(source).parent, read(Path(source))
    notes: list[str] = []
    _refuse_quantized(source.graph)
    model = separated(source, folder)
    declare_constants(model, notes)
    return normalised(_current(model), notes), notes


def normalised(model: Model, notes: list[str] | None = None) -> Model:
    """The same graph, whose main graph may be new, in normal form; it is changed in place."""
    notes = [] if notes is None else notes
    declare_constants(model, notes)
    _named(model.proto)
    in_fp32(model, notes)
    fold_constants(View(model))
    fold_pads(View(model))
    folded = fold_affine(model)["BatchNormalization"]
    if folded:
        notes.append(f"folded into convolutions: {plural(folded, 'BatchNorm')}")
    return model


def read(path: Path) -> ModelProto:
    """The file, without the tensors that are kept beside it."""
    if not path.exists():
        raise ModelError(f"There is no file {path}. Expected an .onnx file.")
    if path.is_dir():
        raise ModelError(f"{path} is a folder. Expected an .onnx file: name the one in it.")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise ModelError(f"{path} is not an ONNX model: {summary(error)}. {AGAIN}") from error
    if not proto.graph.node:
        raise ModelError(f"{path} is not an ONNX model: its graph has no node. {AGAIN}")
    check_data(proto, path)
    return proto


def _refuse_quantized(graph: GraphProto) -> None:
    for node in graph.node:
        if node.op_type in QUANTIZED:
            raise ModelError(
                f"The model is already quantized: node {node.name or node.output[0]!r} is a {node.op_type}. "
                "Give the fp32 model."
            )
        for inner in subgraphs(node):
            _refuse_quantized(inner)


def separated(proto: ModelProto, folder: Path | None) -> Model:
    """The graph in a protobuf of its own, and its tensors as arrays."""
    if proto.functions:
        proto = inline_local_functions(proto)
    light = headed_like(proto)
    graph = light.graph
    graph.name = proto.graph.name or "model"
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    tensors: dict[str, Array] = {}
    for tensor in proto.graph.initializer:
        array = _array(tensor, folder)
        if array is None:
            graph.initializer.append(tensor)
        else:
            tensors[tensor.name] = array
    return Model(light, tensors)


def _array(tensor: TensorProto, folder: Path | None) -> Array | None:
    """The tensor's data, mapped from its file if it is external; None for types that numpy does not have."""
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return None
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.kind not in "fiub" or dtype.names or np.dtype(dtype.str) != dtype:
        return None
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    if folder is None:
        raise ModelError(
            f"Tensor {tensor.name!r} of the ModelProto is kept in a file beside it, and a ModelProto does "
            "not know where. Give the path of the .onnx file, or load it with external data."
        )
    check_beside(tensor, folder)
    entries = {item.key: item.value for item in tensor.external_data}
    path = folder / entries["location"]
    try:
        mapped: Array = np.memmap(
            path, dtype, mode="c", offset=int(entries.get("offset", 0)), shape=tuple(tensor.dims)
        )
        return mapped
    except (OSError, ValueError) as error:
        raise ModelError(f"The data of tensor {tensor.name!r} cannot be read from {path}: {error}") from error


def declare_constants(model: Model, notes: list[str]) -> None:
    """Constant nodes become tensors like the others; what has a value is not an input."""
    graph = model.proto.graph
    kept: list[NodeProto] = []
    outputs = {item.name for item in graph.output}
    for node in graph.node:
        array = _constant(node) if node.op_type == "Constant" and node.output[0] not in outputs else None
        if array is None:
            kept.append(node)
        else:
            model.tensors[node.output[0]] = array
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)
    stored = {*model.tensors, *(item.name for item in graph.initializer)}
    inputs = [item for item in graph.input if item.name not in stored]
    if len(inputs) < len(graph.input):
        notes.append(
            f"{len(graph.input) - len(inputs)} inputs have a default value, and are taken as constants"
        )
        del graph.input[:]
        graph.input.extend(inputs)


def _constant(node: NodeProto) -> Array | None:
    item = node.attribute[0]
    if item.name == "value":
        return _array(item.t, None)
    value = helper.get_attribute_value(item)
    kinds = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    return np.asarray(value, kinds[item.name]) if item.name in kinds else None


def _current(model: Model) -> Model:
    """The model in an opset whose Q/DQ nodes have a scale per channel. Inputs take the place of weights
    while it is converted.
    """
    version = next(
        (item.version for item in model.proto.opset_import if item.domain in ("", "ai.onnx")), QDQ_OPSET
    )
    if version >= QDQ_OPSET:
        model.proto.ir_version = max(model.proto.ir_version, 7)
        return model
    if version < OLDEST_OPSET:
        raise UnsupportedError(
            f"The model is of opset {version}. Expected {OLDEST_OPSET} or later: export it again with a "
            "later opset."
        )
    proto, large = model.skeleton()
    small = [item for item in proto.graph.initializer if item.name not in large]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    proto.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in large.items()
    )
    proto.ir_version = max(proto.ir_version, 7)
    try:
        proto = version_converter.convert_version(proto, QDQ_OPSET)
    # The converter is native code, and raises RuntimeError for whatever it does not know.
    except Exception as error:
        raise UnsupportedError(
            f"The model is of opset {version}, and could not be converted to {QDQ_OPSET}, which int8 "
            f"per channel needs: {summary(error)}. Export it again with opset {QDQ_OPSET} or later."
        ) from error
    inputs = [item for item in proto.graph.input if item.name not in large]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    converted = separated(proto, None)
    converted.tensors.update(large)
    declare_constants(converted, [])
    return converted


def _named(proto: ModelProto) -> None:
    """Every node of the main graph gets a name of its own: its output's, if it has none."""
    taken: set[str] = set()
    for node in proto.graph.node:
        node.name = unused(node.name or next((name for name in node.output if name), node.op_type), taken)
        taken.add(node.name)


def inferred(model: Model) -> Iterator[ValueInfoProto]:
    """What is known of the types and ranks of tensors; nothing where inference fails."""
    proto, _ = model.skeleton()
    with suppress(Exception):  # without it, types and ranks are simply not known
        proto = onnx.shape_inference.infer_shapes(proto)
    yield from (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)


def input_slots(model: Model) -> list[Slot]:
    """Every input of the model: name, type and shape."""
    return [
        Slot(item.name, item.name, helper.tensor_dtype_to_np_dtype(kind.elem_type), _free_shape(kind))
        for item in model.proto.graph.input
        if (kind := item.type.tensor_type).elem_type
    ]


def _free_shape(kind: Any) -> tuple[int | None, ...] | None:
    if not kind.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)


def batch_is_free(model: Model) -> bool:
    """Whether every input may have any number of samples."""
    slots = [slot for slot in input_slots(model) if slot.shape]
    return all(slot.shape[int(rows_second(slot.name, slot.shape))] is None for slot in slots if slot.shape)
