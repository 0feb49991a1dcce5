"""Products of two activations, as in attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto

from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.kinds.base import Found, Kind, Tap
from octune.backends.terms import B
from octune.int8 import Grid
from octune.plan import Op, Scheme

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors
    from octune.backends.onnx.insert import Insertion

__all__ = ["ATTENTION"]


class Attention(Kind):
    """A MatMul of two activations. They are quantized before they are reshaped and transposed: there is less
    to move.
    """

    name, node_type = "attention", "MatMul"
    slots = (0, 1)
    moves = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze"})

    def schemes(self) -> tuple[Scheme, ...]:
        # Each operand has one range.
        return (Scheme.int8("static", granularity="per_tensor"), Scheme.fp32())

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        if any(view.constant(name) is not None for name in node.input):
            return None
        types = {view.elem_type(name) for name in (*node.input, *node.output)} - {0}
        if types - {TensorProto.FLOAT}:
            return self.left_in_float(index, node, "it does not multiply fp32 numbers")
        if any(view.rank(name) == 1 for name in node.input):
            return self.left_in_float(index, node, "one of its operands is a vector")
        if node.input[0] == node.input[1]:
            return self.left_in_float(index, node, "it multiplies a tensor with itself")
        return Found(self, Op(node.name, self.name, self.schemes(), 0, signature="MatMul"), index, node)

    def taps(self, view: View, found: Found) -> list[Tap]:
        return [
            Tap(found.op.name + suffix, found.source(view, operand), found.inputs[operand])
            for operand, suffix in enumerate(("", B))
        ]

    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        (a, b), context, name = at.inputs, at.context, at.found.op.name
        low, high = context.range(name + B, scheme)
        first = Grid.affine(*context.range(name, scheme))
        second = Grid.symmetric(max(-low, high), context.weights.largest_activation)
        product = np.matmul(first.round_trip(a), second.round_trip(b))
        return np.asarray(product - at.y, np.float32)

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        """The second operand is signed, as kernels want weights to be."""
        for operand, suffix in enumerate(("", B)):
            tensor = found.source(insertion.view, operand)
            low, high = insertion.range(found.op.name + suffix, scheme)
            made = insertion.quantized(tensor, low, high, found, weight_like=operand == 1)
            insertion.rewire(found, operand, tensor, made.dequantized)


ATTENTION = Attention()
