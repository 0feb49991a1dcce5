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
from octune.backends.tensorflow.int8.site import Site, geometry

__all__ = ["INPUT", "alone"]

INPUT = "alone/x:0"


def alone(site: Site, graph: Graph, shapes: Shapes) -> tuple[GraphDef, str]:
    """The op with its bias and its activation in fp32, under its own name, and the tensor that it gives."""
    x = node("alone/x", "Placeholder", (), dtype=tf.float32)
    shape = shapes[site.x]
    if shape is None:
        x.attr["shape"].shape.unknown_rank = True
    else:
        x.attr["shape"].shape.SetInParent()
        for size in shape:
            x.attr["shape"].shape.dim.add(size=-1 if size is None else size)
    weight, core = site.weights(graph), graph.nodes[site.core]
    made = [x, constant("alone/weight", weight)]
    if site.is_conv:
        made.append(
            node(
                site.op.name,
                core.op,
                ["alone/x", "alone/weight"],
                T=tf.float32,
                data_format="NHWC",
                **geometry(core),
            )
        )
    else:
        made.append(constant("alone/sizes", [-1, int(weight.shape[0])]))
        made.append(node("alone/rows", "Reshape", ["alone/x", "alone/sizes"], T=tf.float32, Tshape=tf.int32))
        made.append(
            node(
                site.op.name,
                "MatMul",
                ["alone/rows", "alone/weight"],
                T=tf.float32,
                transpose_a=False,
                transpose_b=False,
            )
        )
    made.append(
        constant("alone/bias", np.zeros(site.columns, np.float32) if site.bias is None else site.bias)
    )
    made.append(node("alone/sum", "BiasAdd", [site.op.name, "alone/bias"], T=tf.float32, data_format="NHWC"))
    if site.plain.activation is not None:
        made.extend(_spelled(site.plain.activation))
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
