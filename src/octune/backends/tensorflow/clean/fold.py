"""Cleaning: what is constant becomes a Const, and what only hides the ops is removed.

    fold(graph, frozen.graph_def)           # constants, idle control inputs, BatchNorms, paddings

Nothing here changes what the graph computes, except for the last bit of a float.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import op_def_registry

from octune.backends.tensorflow.graph.emit import array_of, constant, node
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of, tensor

__all__ = ["fold", "frames", "value_of"]

# Pure functions of their inputs that can be found between a variable and the op that reads it.
PASSING = frozenset(("Identity", "StopGradient", "PreventGradient", "Snapshot", "ReadVariableOp"))
SHAPING = frozenset(
    (
        "Reshape",
        "Transpose",
        "Squeeze",
        "ExpandDims",
        "Cast",
        "Pack",
        "ConcatV2",
        "StridedSlice",
        "GatherV2",
        "Prod",
        "Range",
    )
)
ARITHMETIC = frozenset(
    (
        "Mul",
        "Add",
        "AddV2",
        "Sub",
        "RealDiv",
        "Div",
        "Neg",
        "Rsqrt",
        "Sqrt",
        "Square",
        "Pow",
        "Maximum",
        "Minimum",
        "Exp",
    )
)
FOLDABLE = PASSING | SHAPING | ARITHMETIC | {"Reciprocal", "Mean", "Sum"}
NOISE = ("_class", "_output_shapes", "_has_manual_control_dependencies")
CONVS = frozenset(("Conv2D", "DepthwiseConv2dNative"))
OTHERS = frozenset(("MatMul", "Conv3D", "Conv2DBackpropInput"))  # whose outputs may be scaled, too


def value_of(graph: Graph, tensor_name: str) -> Array | None:
    """The value of a tensor that is a Const, seen through Identities; else None."""
    made = graph.nodes.get(node_of(tensor_name))
    while made is not None and made.op in PASSING and graph.inputs(made):
        made = graph.nodes.get(node_of(made.input[0]))
    return array_of(made) if made is not None and made.op == "Const" else None


def fold(graph: Graph, like: GraphDef) -> None:
    """All of the cleaning, in place."""
    _plain(graph)
    _fold_constants(graph, like)
    _skip_idle(graph)
    _fold_pads(graph)
    _fold_affine(graph)


def frames(graph: Graph) -> set[str]:
    """Nodes inside TF1 while loops and conditionals: what is reached from an Enter or a Switch before an Exit
    or a Merge closes it.
    """
    inside: set[str] = set()
    waiting = [n.name for n in graph if n.op in ("Enter", "RefEnter", "Switch", "RefSwitch")]
    while waiting:
        name = waiting.pop()
        if name in inside:
            continue
        inside.add(name)
        if graph.nodes[name].op in ("Exit", "RefExit"):
            continue
        waiting.extend(graph.followers(name))
    return inside


def _plain(graph: Graph) -> None:
    """Write out defaults, which saved models leave out; drop attributes that name nodes or shapes, which may
    soon be gone.
    """
    for made in list(graph):
        definition = op_def_registry.get(made.op)
        left_out = (
            [
                attr
                for attr in definition.attr
                if attr.HasField("default_value") and attr.name not in made.attr
            ]
            if definition
            else []
        )
        noise = [key for key in NOISE if key in made.attr]
        if left_out or noise:
            plain = NodeDef()
            plain.CopyFrom(made)
            for key in noise:
                del plain.attr[key]
            for attr in left_out:
                plain.attr[attr.name].CopyFrom(attr.default_value)
            graph.add(plain)


def _constant_nodes(graph: Graph) -> set[str]:
    """Nodes whose value cannot change, in one pass over a graph in any order."""
    known: dict[str, bool] = {}

    def decide(start: str) -> bool:
        stack = [start]
        while stack:
            name = stack[-1]
            made = graph.nodes.get(name)
            if name in known:
                stack.pop()
            elif made is None or made.op == "Const":
                known[name] = made is not None
                stack.pop()
            elif made.op not in FOLDABLE or not made.input:
                known[name] = False
                stack.pop()
            else:
                parents = [node_of(reference) for reference in made.input]
                unknown = [parent for parent in parents if parent not in known]
                if unknown:
                    stack.extend(unknown)
                else:
                    known[name] = all(known[parent] for parent in parents)
                    stack.pop()
        return known[start]

    # Cycles exist in while loops only, and go through Merge, which is not foldable.
    return {made.name for made in graph if decide(made.name)}


def _fold_constants(graph: Graph, like: GraphDef) -> None:
    constants = _constant_nodes(graph)
    # To wait for a constant is to wait for nothing; but a NoOp that waits for all variables to be read keeps
    # all of them alive.
    for made in list(graph):
        kept = [
            reference
            for reference in made.input
            if not (reference.startswith("^") and reference[1:] in constants)
        ]
        if len(kept) < len(made.input):
            plain = NodeDef()
            plain.CopyFrom(made)
            del plain.input[:]
            plain.input.extend(kept)
            graph.add(plain)
    wanted = [
        name
        for name in constants
        if graph.nodes[name].op not in PASSING | {"Const"}
        and any(reader not in constants for reader, _ in graph.readers(f"{name}:0"))
    ]
    if not wanted:
        return
    part = GraphDef()
    part.versions.CopyFrom(like.versions)
    needed, waiting = set[str](), list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(node_of(reference) for reference in graph.nodes[name].input)
    part.node.extend(graph.nodes[name] for name in needed)
    with tf.Graph().as_default() as session_graph:
        tf.import_graph_def(part, name="")
        with tf.compat.v1.Session(graph=session_graph) as session:
            values = session.run({name: f"{name}:0" for name in wanted})
    for name, value in values.items():
        if value.dtype != object:  # strings stay as they are
            made = graph.nodes[name]
            graph.add(constant(name, np.asarray(value)))
            graph.sweep(node_of(reference) for reference in made.input)


def _skip_idle(graph: Graph) -> None:
    """Transposes that change nothing (tensordot makes them) are skipped, so that two ops that read one
    tensor are seen to do so.
    """
    for made in list(graph):
        if made.op == "Transpose" and made.name in graph and graph.is_private(made.name):
            order = value_of(graph, made.input[1])
            if order is not None and list(order) == list(range(order.size)):
                for reader, position in graph.readers(f"{made.name}:0"):
                    graph.redirect(reader, position, tensor(made.input[0]))
                graph.sweep([made.name])


def _fold_pads(graph: Graph) -> None:
    """A Pad with zeros before a convolution without padding is the convolution's own padding."""
    for made in list(graph):
        if (
            made.op not in CONVS
            or attribute(made, "padding").s != b"VALID"
            or attribute(made, "data_format").s != b"NHWC"
        ):
            continue
        pad = graph.nodes.get(node_of(made.input[0]))
        if pad is None or pad.op != "Pad" or not graph.is_private(pad.name):
            continue
        sizes = value_of(graph, pad.input[1])
        if sizes is None or sizes.shape != (4, 2) or sizes[0].any() or sizes[3].any():
            continue
        changed = NodeDef()
        changed.CopyFrom(made)
        changed.input[0] = pad.input[0]
        changed.attr["padding"].s = b"EXPLICIT"
        changed.attr["explicit_paddings"].list.i[:] = [int(size) for size in sizes.reshape(-1)]
        graph.add(changed)
        graph.sweep([pad.name])


# -- BatchNorm: y = a * conv + b with constants for every channel --------------------------------------------


def _fold_affine(graph: Graph) -> None:
    for made in list(graph):
        if made.op in CONVS | OTHERS and attribute(made, "T").type == tf.float32.as_datatype_enum:
            _fold_one(graph, made)


def _fold_one(graph: Graph, op: NodeDef) -> None:
    weight = value_of(graph, op.input[1])
    if (
        weight is None
        or attribute(op, "data_format").s not in (b"", b"NHWC", b"NDHWC")
        or not graph.is_private(op.name)
    ):
        return
    columns = _channels(op, weight)
    scale, shift = np.ones(columns), np.zeros(columns)
    last, passed, scaled = op, [op.name], False
    while True:
        step = _next_affine(graph, last, columns, rank=weight.ndim)
        if step is None:
            break
        following, factor, offset = step
        scale, shift = scale * factor, shift * factor + offset
        scaled = scaled or following.op not in ("BiasAdd", "Add", "AddV2", "Sub")
        last = following
        passed.append(last.name)
        if not graph.is_private(last.name):
            break
    if not scaled or not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return
    weight_name, shift_name = graph.fresh(f"{op.name}/folded_weight"), graph.fresh(f"{last.name}/folded_bias")
    graph.add(constant(weight_name, (weight * _as_weight(op, weight, scale)).astype(np.float32)))
    graph.add(constant(shift_name, shift.astype(np.float32)))
    changed = NodeDef()
    changed.CopyFrom(op)
    changed.input[1] = weight_name
    graph.add(changed)
    old = [reference for name in passed for reference in graph.nodes[name].input]
    graph.add(node(last.name, "BiasAdd", [op.name, shift_name], T=tf.float32, data_format="NHWC"))
    graph.sweep([*passed[1:-1], *(node_of(reference) for reference in [*old, op.input[1]])])


def _channels(op: NodeDef, weight: Array) -> int:
    if op.op == "DepthwiseConv2dNative":
        return int(weight.shape[2] * weight.shape[3])
    if op.op == "Conv2DBackpropInput":
        return int(weight.shape[2])
    return int(weight.shape[0] if attribute(op, "transpose_b").b else weight.shape[-1])


def _as_weight(op: NodeDef, weight: Array, scale: Array) -> Array:
    if op.op == "DepthwiseConv2dNative":
        return scale.reshape(weight.shape[2:])
    first = attribute(op, "transpose_b").b or op.op == "Conv2DBackpropInput"  # outputs before inputs
    return scale[:, None] if first else scale


def _next_affine(graph: Graph, last: NodeDef, columns: int, rank: int) -> tuple[NodeDef, Array, Array] | None:
    """The only reader of a node, if it scales or shifts each channel by a constant: (reader, factor,
    offset).
    """
    readers = graph.readers(f"{last.name}:0")
    if len(readers) != 1:
        return None
    reader, position = graph.nodes[readers[0][0]], readers[0][1]
    if reader.op.startswith("FusedBatchNorm") and position == 0:
        return _batch_norm(graph, reader)
    if (
        reader.op not in ("BiasAdd", "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div")
        or len(graph.inputs(reader)) != 2
    ):
        return None
    value = value_of(graph, graph.inputs(reader)[1 - position])
    if (
        value is None
        or value.size not in (1, columns)
        or value.ndim > rank
        or (value.ndim and value.shape[-1] != value.size)
    ):
        return None
    vector = np.broadcast_to(value.reshape(-1).astype(np.float64), (columns,))
    one, zero = np.ones(columns), np.zeros(columns)
    if reader.op in ("BiasAdd", "Add", "AddV2"):
        return reader, one, vector
    if reader.op == "Sub":
        return (reader, one, -vector) if position == 0 else (reader, -one, vector)
    if reader.op == "Mul":
        return (reader, vector, zero) if value.size == columns else None
    return (reader, 1 / vector, zero) if position == 0 and value.size == columns and vector.all() else None


def _batch_norm(graph: Graph, norm: NodeDef) -> tuple[NodeDef, Array, Array] | None:
    """Only in inference, and only where its statistics are not read."""
    if (
        attribute(norm, "is_training").b
        or attribute(norm, "data_format").s != b"NHWC"
        or any(graph.readers(f"{norm.name}:{i}") for i in range(1, 6))
    ):
        return None
    values = [value_of(graph, reference) for reference in graph.inputs(norm)[1:5]]
    if any(value is None for value in values):
        return None
    gamma, beta, mean, variance = (np.asarray(value, np.float64) for value in values)
    factor = gamma / np.sqrt(variance + attribute(norm, "epsilon").f)
    return norm, factor, beta - mean * factor
