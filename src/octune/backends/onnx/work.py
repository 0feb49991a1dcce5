"""What one fp32 batch computes: multiply-adds of every node that multiplies, and the types of the others.

    work = counted(view, {3: "encoder/MatMul"}, feed, threads)

The graph runs once with the shapes of what those nodes read and make as extra outputs. So do the steps of
loops; what is in branches, or further inside, is named without a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod

from onnx import NodeProto, TensorProto

from octune.backends.batches import Inputs
from octune.backends.onnx.branches import named_inside
from octune.backends.onnx.graph import View, attribute, subgraphs
from octune.backends.onnx.observe import tapped
from octune.backends.onnx.runtimes import session
from octune.backends.onnx.steps import shapes_in_steps
from octune.coverage import Work, einsum_products

__all__ = ["counted"]

Shape = tuple[int, ...]
# Nodes that only move, make or look up numbers, or compute with shapes.
MOVES = {
    "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Compress", "Concat", "ConcatFromSequence",
    "Constant", "ConstantOfShape", "CumSum", "DepthToSpace", "Dropout", "Equal", "Expand", "EyeLike",
    "Flatten", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "If",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "Loop", "NonZero", "Not", "OneHot", "Or", "Pad", "Range",
    "Reshape", "Scan", "ScatterElements", "ScatterND", "SequenceAt", "Shape", "Size", "Slice",
    "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Trilu",
    "Unsqueeze", "Where", "Xor",
}  # fmt: skip


def _matmul(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return prod(output) * inputs[0][-1]


def _gemm(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return prod(output) * inputs[0][0 if attribute(node, "transA", 0) else 1]


def _conv(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return prod(output) * prod(inputs[1][1:])


def _conv_transpose(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return prod(inputs[0]) * prod(inputs[1][1:])


def _recurrent(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    steps, batch = inputs[0][:2] if not attribute(node, "layout", 0) else inputs[0][1::-1]
    return steps * batch * (prod(inputs[1]) + prod(inputs[2]))


def _quantized_conv(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return prod(output) * prod(inputs[3][1:])


def _projections(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return prod(inputs[0]) * inputs[1][-1]


def _einsum(node: NodeProto, inputs: list[Shape], output: Shape) -> int:
    return einsum_products(attribute(node, "equation", b"").decode(), inputs)


FORMULAS: Mapping[str, Callable[[NodeProto, list[Shape], Shape], int]] = {
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvTranspose": _conv_transpose,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Einsum": _einsum,
    "MatMulInteger": _matmul,
    "MatMulIntegerToFloat": _matmul,
    "DynamicQuantizeMatMul": _matmul,
    "QLinearMatMul": _matmul,
    "QGemm": _gemm,
    "ConvInteger": _conv,
    "QLinearConv": _quantized_conv,
    "DynamicQuantizeLSTM": _recurrent,
    "QAttention": _projections,
}
# Multiply as well, in ways that their shapes alone do not tell.
UNCOUNTED = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "DeformConv"})


def counted(
    view: View,
    names: Mapping[int, str],
    feed: Inputs,
    threads: int | None,
    inside: Callable[[str, NodeProto], str | None] = lambda name, node: None,
) -> Work:
    """Run one batch, and count. ``names`` are those of ops, by the index of their node; several nodes may
    share one. ``inside`` says what a node in a loop is called, if it is an op.
    """
    unseen, uncounted, others = Counter[str](), Counter[str](), Counter[str]()
    ops = Counter[str]()
    steps = shapes_in_steps(view, FORMULAS, feed, threads)
    for index, seen in steps.items():
        called = {_made(node): inside(name, node) for name, node in named_inside(view.nodes[index])}
        for node, shapes_read, shape_made in seen:
            products, name = FORMULAS[node.op_type](node, shapes_read, shape_made), called.get(_made(node))
            if name is None:
                unseen[node.op_type] += products
            else:
                ops[name] += products
    multiplying: list[tuple[int, NodeProto]] = []
    for index, node in enumerate(view.nodes):
        uncounted.update(inner.op_type for inner in _uncounted(node, counts=index in steps))
        if node.op_type in FORMULAS:
            multiplying.append((index, node))
        elif node.op_type in UNCOUNTED:
            uncounted[node.op_type] += 1
        elif node.op_type not in MOVES and view.elem_type(_made(node)) in (0, TensorProto.FLOAT):
            others[node.op_type] += 1
    shapes = _shapes(view, {name for _, node in multiplying for name in _read(node)}, feed, threads)
    for index, node in multiplying:
        inputs, output = [shapes[name] for name in node.input if name], shapes[_made(node)]
        products = FORMULAS[node.op_type](node, inputs, output)
        if index in names:
            ops[names[index]] += products
        else:
            unseen[node.op_type] += products
    return Work(dict(ops), unseen, uncounted, others)


def _uncounted(node: NodeProto, *, counts: bool) -> Iterator[NodeProto]:
    """What multiplies in the graphs inside a node; ``counts``: except for what has been counted there."""
    for inner in (inner for graph in subgraphs(node) for inner in graph.node):
        if inner.op_type in UNCOUNTED or (inner.op_type in FORMULAS and not counts):
            yield inner
        yield from _uncounted(inner, counts=False)


def _made(node: NodeProto) -> str:
    return next(str(name) for name in node.output if name)


def _read(node: NodeProto) -> list[str]:
    return [*(name for name in node.input if name), _made(node)]


def _shapes(view: View, tensors: Iterable[str], feed: Inputs, threads: int | None) -> dict[str, Shape]:
    known = {name: array.shape for name in tensors if (array := view.model.tensors.get(name)) is not None}
    known |= {name: array.shape for name, array in feed.kwargs.items()}
    wanted = sorted(set(tensors) - set(known))
    if not wanted:
        return known
    graph, names = tapped(view, (), wanted)
    made = session(graph, threads).run(names, dict(feed.kwargs))
    return known | {name: tuple(map(int, shape)) for name, shape in zip(wanted, made, strict=True)}
