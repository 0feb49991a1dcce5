"""Einsum and batched matmuls with constant weights as what they are: Reshape, MatMul, Reshape.

    normalise(graph, shapes)        # -> {original node: its MatMul}, and why others were left alone

That is how Keras writes Dense on 3-D input and the projections of MultiHeadAttention. The last Reshape keeps
the name of the original node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.graph.emit import constant, node
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.graph.shapes import Shape, Shapes

__all__ = ["BATCHED", "Normalised", "normalise", "product"]

BATCHED = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


@dataclass
class Normalised:
    """``matmuls``: original node -> the MatMul that computes it now. ``reasons``: what was left alone, and
    why.
    """

    matmuls: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Product:
    """An op as a matmul of rows: the activation, how many of its last axes are summed over, the weight as [K,
    N], and the new last axes.
    """

    x: str
    contracted: int
    weight: Array
    tail: tuple[int, ...]


def normalise(graph: Graph, shapes: Shapes, avoid: set[str]) -> Normalised:
    """Rewrite them all, in place. Nodes in ``avoid`` (control flow) are left alone."""
    found = Normalised()
    dims: dict[tuple[str, int], str] = {}
    for made in list(graph):
        if made.op not in (*BATCHED, "Einsum") or made.name in avoid:
            continue
        if shapes.dtype(f"{made.name}:0") != tf.float32:
            continue
        result = product(graph, made, shapes)
        if isinstance(result, str):
            found.reasons[made.name] = result
        elif result is not None:
            found.matmuls[made.name] = _emit(graph, made, result, shapes, dims)
    for made in list(graph):
        if made.op == "MatMul":
            _plain_rows(graph, made)
    return found


def product(graph: Graph, made: NodeDef, shapes: Shapes) -> Product | str | None:
    """The matmul of rows that a node is; None if its operands both vary; or why it is not one."""
    operands = graph.inputs(made)
    if len(operands) != 2:
        return None
    values = [_large(graph, operand) for operand in operands]
    if (values[0] is None) == (values[1] is None):
        return None
    if made.op == "Einsum":
        return _einsum(made, operands, values)
    if values[1] is None:
        return "its constant is the left operand"
    rows, columns = (int(size) for size in values[1].shape[-2:])
    flat = values[1].reshape(rows, columns) if values[1].size == rows * columns else None
    shape = shapes[operands[0]]
    if flat is None:
        return f"its weight {values[1].shape} is another one for every batch"
    if attribute(made, "adj_x").b:
        return "its input is transposed (adj_x)"
    if shape is None or len(shape) < max(2, values[1].ndim):
        return "the rank of its input is not known"
    weight = flat.T if attribute(made, "adj_y").b else flat
    return Product(operands[0], 1, weight, (int(weight.shape[1]),))


def _large(graph: Graph, operand: str) -> Array | None:
    value = value_of(graph, operand)
    return value if value is not None and value.ndim >= 2 else None


def _einsum(made: NodeDef, operands: list[str], values: list[Array | None]) -> Product | str:
    equation = attribute(made, "equation").s.decode().replace(" ", "")
    if "..." in equation or "->" not in equation:
        return f"its equation {equation!r} has an ellipsis"
    sides, out = equation.split("->")
    labels = sides.split(",")
    constant_at = 1 if values[0] is None else 0
    x, w = labels[1 - constant_at], labels[constant_at]
    weight = values[1] if constant_at else values[0]
    shared = [label for label in x if label in w and label not in out]
    rows, columns = (
        [label for label in x if label not in shared],
        [label for label in w if label not in shared],
    )
    distinct = all(len(set(side)) == len(side) for side in (x, w, out))
    if (
        weight is None
        or not distinct
        or not shared
        or list(x) != rows + shared
        or list(out) != rows + columns
    ):
        return f"its equation {equation!r} is not rows times a matrix"
    ordered = weight.transpose([w.index(label) for label in (*shared, *columns)])
    sizes = ordered.shape
    tail = tuple(int(size) for size in sizes[len(shared) :])
    return Product(
        operands[1 - constant_at], len(shared), ordered.reshape(int(np.prod(sizes[: len(shared)])), -1), tail
    )


def _emit(
    graph: Graph, made: NodeDef, found: Product, shapes: Shapes, dims: dict[tuple[str, int], str]
) -> str:
    name = made.name
    add = graph.add
    inner = found.weight.shape[0]
    names = {
        role: graph.fresh(f"{name}/{role}") for role in ("rows", "rows_shape", "weight", "matmul", "shape")
    }
    add(constant(names["weight"], np.ascontiguousarray(found.weight)))
    add(constant(names["rows_shape"], [-1, int(inner)]))
    add(node(names["rows"], "Reshape", [found.x, names["rows_shape"]], T=tf.float32, Tshape=tf.int32))
    add(
        node(
            names["matmul"],
            "MatMul",
            [names["rows"], names["weight"]],
            T=tf.float32,
            transpose_a=False,
            transpose_b=False,
        )
    )
    shape = _output_shape(graph, found, shapes[found.x], names["shape"], dims)
    add(node(name, "Reshape", [names["matmul"], shape], T=tf.float32, Tshape=tf.int32))
    graph.sweep(node_of(reference) for reference in made.input)
    return names["matmul"]


def _output_shape(
    graph: Graph, found: Product, known: Shape | None, name: str, dims: dict[tuple[str, int], str]
) -> str:
    """A constant where at most one size is open, else put together from the input's shape at run time."""
    lead = None if known is None else known[: len(known) - found.contracted]
    if lead is not None and sum(size is None for size in lead) <= 1 and 0 not in lead:
        graph.add(constant(name, [-1 if size is None else size for size in lead] + list(found.tail)))
        return name
    key = (found.x, found.contracted)
    if key not in dims:  # Q, K and V ask for the same sizes
        base = graph.fresh(f"{node_of(found.x)}/sizes")
        parts = {part: graph.fresh(f"{base}/{part}") for part in ("shape", "begin", "end", "step")}
        graph.add(node(parts["shape"], "Shape", [found.x], T=tf.float32, out_type=tf.int32))
        for part, value in (("begin", 0), ("end", -found.contracted), ("step", 1)):
            graph.add(constant(parts[part], [value]))
        masks = {
            "begin_mask": 1,
            "end_mask": 0,
            "ellipsis_mask": 0,
            "new_axis_mask": 0,
            "shrink_axis_mask": 0,
        }
        graph.add(node(base, "StridedSlice", parts.values(), T=tf.int32, Index=tf.int32, **masks))
        dims[key] = base
    axis, last = graph.fresh(f"{name}/axis"), graph.fresh(f"{name}/last")
    graph.add(constant(axis, 0))
    graph.add(constant(last, list(found.tail)))
    graph.add(node(name, "ConcatV2", [dims[key], last, axis], T=tf.int32, Tidx=tf.int32, N=2))
    return name


def _plain_rows(graph: Graph, matmul: NodeDef) -> None:
    """tensordot computes the shape of its rows at run time; that there are K columns is known from the
    weight.
    """
    weight = _large(graph, matmul.input[1])
    rows = graph.nodes.get(node_of(matmul.input[0]))
    if (
        weight is None
        or rows is None
        or rows.op != "Reshape"
        or attribute(matmul, "transpose_a").b
        or not graph.is_private(rows.name)
    ):
        return
    if graph.nodes[node_of(rows.input[1])].op == "Const" or len(graph.followers(rows.name)) != 1:
        return
    columns = weight.shape[1 if attribute(matmul, "transpose_b").b else 0]
    name = graph.fresh(f"{rows.name}/rows")
    graph.add(constant(name, [-1, int(columns)]))
    changed = NodeDef()
    changed.CopyFrom(rows)
    old = node_of(rows.input[1])
    changed.input[1] = name
    changed.attr["Tshape"].type = tf.int32.as_datatype_enum
    graph.add(changed)
    graph.sweep([old])
