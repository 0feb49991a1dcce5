"""One op by itself, as a graph: for timing it in one scheme or another."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.emit import constant, node
from octune.backends.tensorflow.graph.graph import Graph
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.int8.fused_op import FusedOp

__all__ = ["INPUT", "alone"]

INPUT = "alone/x:0"


def alone(fused: FusedOp, graph: Graph, shapes: Shapes) -> tuple[GraphDef, str]:
    """The op with its bias and its activation in fp32, under its own name, and its output tensor."""
    x = node("alone/x", "Placeholder", (), dtype=tf.float32)
    shape = shapes[fused.x]
    if shape is None:
        x.attr["shape"].shape.unknown_rank = True
    else:
        x.attr["shape"].shape.SetInParent()
        for size in shape:
            x.attr["shape"].shape.dim.add(size=-1 if size is None else size)
    weight, core = fused.weights(graph), graph.nodes[fused.core]
    made = [x, constant("alone/weight", weight)]
    if fused.kind.in_rows:
        made.append(constant("alone/sizes", [-1, fused.inner]))
        made.append(node("alone/rows", "Reshape", ["alone/x", "alone/sizes"], T=tf.float32, Tshape=tf.int32))
    inputs = ["alone/rows" if fused.kind.in_rows else "alone/x", "alone/weight"]
    made.extend(fused.kind.float_nodes(fused.op.name, core, inputs, tf.float32))
    made.append(
        constant("alone/bias", np.zeros(fused.columns, np.float32) if fused.bias is None else fused.bias)
    )
    made.append(node("alone/sum", "BiasAdd", [fused.op.name, "alone/bias"], T=tf.float32, data_format="NHWC"))
    if fused.plain.activation is not None:
        made.extend(_spelled(fused.plain.activation))
    part = GraphDef()
    part.node.extend(made)
    return part, f"{made[-1].name}:0"


def _spelled(activation: Activation) -> list[NodeDef]:
    """An activation in the usual spelling."""
    if activation.name == "LeakyRelu":
        return [node("alone/y", "LeakyRelu", ["alone/sum"], T=tf.float32, alpha=activation.alpha)]
    if not activation.name.startswith("Gelu"):
        return [node("alone/y", activation.name, ["alone/sum"], T=tf.float32)]
    made: list[NodeDef] = []

    def number(value: float) -> str:
        made.append(constant(f"alone/number_{len(made)}", float(value)))
        return str(made[-1].name)

    def apply(op: str, *inputs: str) -> str:
        made.append(node(f"alone/step_{len(made)}", op, inputs, T=tf.float32))
        return str(made[-1].name)

    x = "alone/sum"
    if activation.name == "GeluExact":
        inner = apply("Erf", apply("Mul", x, number(np.sqrt(0.5))))
    else:
        cubic = apply("AddV2", x, apply("Mul", number(0.044715), apply("Pow", x, number(3.0))))
        inner = apply("Tanh", apply("Mul", number(np.sqrt(2 / np.pi)), cubic))
    apply("Mul", x, apply("Mul", number(0.5), apply("AddV2", number(1.0), inner)))
    return made
