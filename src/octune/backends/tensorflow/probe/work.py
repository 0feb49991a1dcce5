"""What one fp32 batch computes: multiply-adds of every node that multiplies, and the types of the others.

    work = counted(graph, like, names, inside, inputs)

Nothing runs: TensorFlow infers all shapes from those of the batch, and what it cannot infer is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.batches import Inputs
from octune.backends.tensorflow.clean.layernorm import LAYERNORM
from octune.backends.tensorflow.graph.graph import Graph, attribute
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.coverage import Work, einsum_products

__all__ = ["counted"]

Sizes = tuple[int, ...]
# What users know ops as that cleaning has put in; and of what multiplies nothing, the ops that take the time.
TITLES = {LAYERNORM: "LayerNorm"}
OTHERS = {
    "AddN", "AddV2", "Add", "AvgPool", "BiasAdd", "Cumsum", "Elu", "Erf", "Erfc", "Exp",
    "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "LRN", "LeakyRelu", "Log", "LogSoftmax",
    "MaxPool", "Mean", "Mul", "Pow", "RealDiv", "Relu", "Relu6", "ResizeBilinear",
    "ResizeNearestNeighbor", "Rsqrt", "Selu", "Sigmoid", "Softmax", "Softplus", "Sqrt",
    "SquaredDifference", "Sub", "Sum", "Tanh",
}  # fmt: skip


def _matmul(node: NodeDef, inputs: list[Sizes], output: Sizes) -> int:
    return prod(output) * inputs[0][0 if attribute(node, "transpose_a").b else 1]


def _batch_matmul(node: NodeDef, inputs: list[Sizes], output: Sizes) -> int:
    return prod(output) * inputs[0][-2 if attribute(node, "adj_x").b else -1]


def _conv(node: NodeDef, inputs: list[Sizes], output: Sizes) -> int:
    return prod(output) * prod(inputs[1][:-1])


def _depthwise(node: NodeDef, inputs: list[Sizes], output: Sizes) -> int:
    return prod(output) * prod(inputs[1][:2])


def _conv_transpose(node: NodeDef, inputs: list[Sizes], output: Sizes) -> int:
    return prod(inputs[2]) * prod(inputs[1][:-1])


def _einsum(node: NodeDef, inputs: list[Sizes], output: Sizes) -> int:
    return einsum_products(attribute(node, "equation").s.decode(), inputs)


FORMULAS: Mapping[str, Callable[[NodeDef, list[Sizes], Sizes], int]] = {
    "MatMul": _matmul,
    "BatchMatMul": _batch_matmul,
    "BatchMatMulV2": _batch_matmul,
    "BatchMatMulV3": _batch_matmul,
    "Conv2D": _conv,
    "Conv3D": _conv,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _conv_transpose,
    "Conv3DBackpropInputV2": _conv_transpose,
    "Einsum": _einsum,
}
# The same of int8 kernels, by a word of their names; ranges and zero points follow the two operands.
QUANTIZED = ("Quantized", "_Quantized", "_FusedQuantized", "_MklQuantized")
QUANTIZED_FORMULAS = {"Depthwise": _depthwise, "Conv": _conv, "MatMul": _batch_matmul}


def counted(graph: Graph, like: GraphDef, names: Mapping[str, str], inside: set[str], inputs: Inputs) -> Work:
    """Count a graph for one batch. ``names`` are those of ops, by the node that computes them; nodes
    ``inside`` loops run any number of times.
    """
    shapes = Shapes(graph, like, inputs.kwargs)
    ops: Counter[str] = Counter()
    unseen, uncounted, others = Counter[str](), Counter[str](), Counter[str]()
    for node in graph:
        title = TITLES.get(node.op, node.op)
        formula = _formula(node.op)
        if formula is not None:
            operands = graph.inputs(node)[: 2 if node.op not in FORMULAS else None]
            read = [_sizes(shapes, tensor) for tensor in operands]
            made = _sizes(shapes, f"{node.name}:0")
            sizes = [size for size in read if size is not None]
            if made is None or len(sizes) < len(read) or node.name in inside:
                uncounted[title] += 1
            elif node.name in names:
                ops[names[node.name]] += formula(node, sizes, made)
            else:
                unseen[title] += formula(node, sizes, made)
        elif (node.op in OTHERS or node.op in TITLES) and _floats(node):
            others[title] += 1
    for function in like.library.function:
        uncounted.update(node.op for node in function.node_def if node.op in FORMULAS)
    return Work(dict(ops), unseen, uncounted, others)


def _formula(op: str) -> Callable[[NodeDef, list[Sizes], Sizes], int] | None:
    if op in FORMULAS or not op.startswith(QUANTIZED):
        return FORMULAS.get(op)
    return next((formula for word, formula in QUANTIZED_FORMULAS.items() if word in op), None)


def _floats(node: NodeDef) -> bool:
    return attribute(node, "T").type in (0, 1)  # DT_FLOAT, or not said


def _sizes(shapes: Shapes, tensor: str) -> Sizes | None:
    shape = shapes[tensor]
    if shape is None or None in shape:
        return None
    return tuple(int(size or 0) for size in shape)
