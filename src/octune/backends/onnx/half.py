"""Models in fp16, computed in fp32: CPUs have no fast fp16 kernels, and Q/DQ nodes of opset 13 take only
fp32.

in_fp32(model, notes)       # weights, casts and constants; inputs and outputs keep their type
"""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from octune.backends.onnx.graph import Model, subgraphs

__all__ = ["in_fp32"]

FP16, FP32 = TensorProto.FLOAT16, TensorProto.FLOAT


def in_fp32(model: Model, notes: list[str]) -> None:
    """Widen an fp16 model. Weights that are stored in fp16 and cast to fp32 by the graph itself count as fp32
    already.
    """
    graph = model.proto.graph
    halves = [name for name, array in model.tensors.items() if array.dtype == np.float16]
    if not halves and not _is_half(graph):
        return
    for name in halves:
        model.tensors[name] = model.tensors[name].astype(np.float32)
    _widen(graph)
    before, after = [], []
    for item in graph.input:
        if item.type.tensor_type.elem_type == FP16:
            wide = f"{item.name}/fp32"
            _rename_inputs(graph, item.name, wide)
            before.append(helper.make_node("Cast", [item.name], [wide], f"{wide}/Cast", to=FP32))
    for item in graph.output:
        if item.type.tensor_type.elem_type == FP16:
            wide = f"{item.name}/fp32"
            _rename_inputs(graph, item.name, wide)
            for node in graph.node:
                node.output[:] = [wide if name == item.name else name for name in node.output]
            after.append(helper.make_node("Cast", [wide], [item.name], f"{wide}/Cast", to=FP16))
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    notes.append(
        f"the model is in fp16 ({len(halves)} tensors): it is computed in fp32, which is what int8 is "
        "compared with"
    )


def _is_half(graph: GraphProto) -> bool:
    return any(item.type.tensor_type.elem_type == FP16 for item in (*graph.input, *graph.output))


def _widen(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        if tensor.data_type == FP16:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
            )
    for item in graph.value_info:
        if item.type.tensor_type.elem_type == FP16:
            item.type.tensor_type.elem_type = FP32
    for node in graph.node:
        _widen_node(node)
        for inner in subgraphs(node):
            for item in (*inner.input, *inner.output):
                if item.type.tensor_type.elem_type == FP16:
                    item.type.tensor_type.elem_type = FP32
            _widen(inner)


def _widen_node(node: NodeProto) -> None:
    for item in node.attribute:
        if item.name in ("to", "dtype") and item.i == FP16:
            item.i = FP32
        elif item.HasField("t") and item.t.data_type == FP16:
            item.t.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(item.t).astype(np.float32), item.t.name)
            )


def _rename_inputs(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        for inner in subgraphs(node):
            _rename_inputs(inner, old, new)
