"""TensorFlow graphs of a few nodes, for benchmarks/bench_ops_tensorflow.py.

What a graph reads is inside it, and calls only run it: feeding and fetching arrays would cost more than some
of these ops do.

    nodes = Nodes()
    form = nodes.form(nodes.add("Tanh", nodes.given(array), T=tf.float32), threads=2)
    form(), form.value()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.framework.tensor_shape import TensorShape

from octune.backends.tensorflow.graph.emit import constant, node, quantize, quantized_conv
from octune.backends.tensorflow.graph.sessions import new_session
from octune.int8 import Limit, quantize_weight

__all__ = ["DEPTHWISE", "PLAIN", "Form", "Nodes", "around_zero", "float_conv", "int8_conv", "int8_weight"]

Array = Any
FLOAT, QUINT8, QINT8 = tf.float32, tf.quint8, tf.qint8
CONV, DEPTHWISE = "_FusedQuantizedConv2D", "_FusedQuantizedDepthwiseConv2D"
PLAIN = {"strides": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "explicit_paddings": [], "padding": "SAME"}


class Nodes:
    """A graph that is being written. Names count up."""

    def __init__(self) -> None:
        self._made = GraphDef()

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.put(lambda name: node(name, op, inputs, **attributes))

    def put(self, make: Callable[[str], Any]) -> str:
        name = f"n{len(self._made.node)}"
        self._made.node.append(make(name))
        return name

    def stored(self, value: Any, dtype: Any = None) -> str:
        return self.put(lambda name: constant(name, value, dtype))

    def given(self, value: Array, dtype: Any = None) -> str:
        """A constant that is not computed with in advance."""
        held = self.stored(value, dtype)
        kind = dtype or tf.as_dtype(value.dtype)
        return self.add("PlaceholderWithDefault", held, dtype=kind, shape=TensorShape(value.shape))

    def cast(self, x: str, source: Any, wanted: Any) -> str:
        return self.add("Cast", x, SrcT=source, DstT=wanted, Truncate=False)

    def quantized(self, x: str, low: float, high: float, *, signed: bool = False) -> tuple[str, str, str]:
        """int8 values and the ends of their range."""
        ends = (self.stored(np.float32(low)), self.stored(np.float32(high)))
        return self.put(lambda name: quantize(name, x, *ends, signed=signed)), *ends

    def floats(self, values: str, low: str, high: str, kind: Any = QUINT8) -> str:
        how = {"mode": "MIN_FIRST" if kind == QUINT8 else "SCALED", "narrow_range": False, "axis": -1}
        return self.add("Dequantize", values, low, high, T=kind, dtype=FLOAT, **how)

    def apart(self, values: str, kind: Any, count: int) -> list[str]:
        """int8 values along their first axis. TensorFlow takes them apart only by their plain names."""
        return self._parts("Unpack", [], values, kind, {"num": count, "axis": 0})

    def split(self, values: str, kind: Any, count: int) -> list[str]:
        """int8 values along their last axis."""
        return self._parts("Split", [self.stored(3)], values, kind, {"num_split": count})

    def _parts(self, op: str, before: list[str], values: str, kind: Any, how: dict[str, int]) -> list[str]:
        plain = {QUINT8: tf.uint8, QINT8: tf.int8}[kind]
        made = self.add(op, *before, self.add("Bitcast", values, T=kind, type=plain), T=plain, **how)
        count = next(iter(how.values()))
        return [self.add("Bitcast", f"{made}:{place}", T=plain, type=kind) for place in range(count)]

    def part(self, fed: dict[str, Any], output: str) -> Any:
        """These nodes as a part of the graph that is being built, on other tensors of it."""
        placed = {f"{name}:0": value for name, value in fed.items()}
        return tf.import_graph_def(self._made, placed, [f"{output}:0"], name="part")[0]

    def form(self, timed: str, threads: int, output: str = "") -> Form:
        """The graph up to a node; ``output``: another one that makes floats of it."""
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(self._made, name="")
        return Form(graph, timed, output or timed, threads)


class Form:
    """A graph to run; :meth:`value` returns what it computes."""

    def __init__(self, graph: Any, timed: str, output: str, threads: int) -> None:
        session = new_session(graph, threads)
        self._run = session.make_callable(graph.get_operation_by_name(timed))
        self.value = session.make_callable(f"{output}:0")

    def __call__(self) -> None:
        self._run()


def int8_weight(nodes: Nodes, w: Array) -> tuple[str, str, str]:
    made = quantize_weight(w.T, "per_channel", Limit.PAIRS)
    reach = made.scales.reshape(-1) * 127.0
    return nodes.stored(np.ascontiguousarray(made.values.T), QINT8), nodes.stored(-reach), nodes.stored(reach)


def int8_conv(
    nodes: Nodes, x: tuple[str, str, str], w: Array, reach: float, op: str = CONV
) -> tuple[str, str, str]:
    """An int8 convolution of int8 values around zero; what comes out is, too."""
    first, back = ((3, 2, 0, 1), (2, 3, 1, 0)) if op == CONV else ((2, 3, 0, 1), (2, 3, 0, 1))
    made = quantize_weight(w.transpose(first), "per_channel", Limit.PAIRS)
    peaks = (made.scales.reshape(-1) * 127.0).astype(np.float32)
    values = made.values.transpose(back)
    kernel = nodes.stored(np.ascontiguousarray(values), QINT8)
    bias, ends = nodes.stored(np.zeros(peaks.size, np.float32)), (nodes.stored(-peaks), nodes.stored(peaks))
    out = (nodes.stored(np.float32(-reach)), nodes.stored(np.float32(reach)))
    scales = (x[1], x[2], *ends)
    name = nodes.put(
        lambda name: quantized_conv(
            name, op, (x[0], kernel, bias), scales, out, signed=(True, True), relu=False, geometry=PLAIN
        )
    )
    return name, *out


def float_conv(nodes: Nodes, x: str, w: Array, op: str = "Conv2D", kind: Any = FLOAT) -> str:
    held = nodes.stored(w) if kind == FLOAT else nodes.cast(nodes.stored(w), FLOAT, kind)
    return nodes.add(op, x, held, T=kind, data_format="NHWC", **PLAIN)


def around_zero(nodes: Nodes, x: Array) -> tuple[str, str, str]:
    """An input in int8, as the op before it has left it."""
    reach = float(np.abs(x).max())
    values = np.clip(np.rint(x * (127 / reach)), -127, 127).astype(np.int8)
    return nodes.given(values, QINT8), nodes.stored(np.float32(-reach)), nodes.stored(np.float32(reach))
