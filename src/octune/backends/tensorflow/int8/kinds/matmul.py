"""Matrices times constant matrices, in uint8 with a zero point; float comes out unless all readers take
int8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.dense import BATCHED
from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.emit import node, quantized_matmul
from octune.backends.tensorflow.graph.graph import Array, attribute
from octune.backends.tensorflow.graph.shapes import Shape
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.emission import Emission, Piece
from octune.backends.tensorflow.int8.fused_op import FusedOp, Fusion
from octune.backends.tensorflow.int8.kinds.base import Kind, Number
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import static_schemes

__all__ = ["MatMul"]


class MatMul(Kind):
    """``MatMul`` with a constant weight, and what cleaning turns into it."""

    name, noun, tf_op, kernel = "matmul", "matmul", "MatMul", "_QuantizedMatMul"
    spellings = ("Einsum", *BATCHED)
    rank, in_rows, outputs_int8, sum_needs_relu = 2, True, False, False

    def schemes(self) -> tuple[Scheme, ...]:
        return (
            *static_schemes(),
            Scheme.int8("dynamic"),
            Scheme.int8("dynamic", granularity="per_tensor"),
        )

    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        if weight.ndim != 2:
            return f"its weight has the shape {weight.shape}"
        if attribute(core, "transpose_a").b:
            return "its input is transposed (transpose_a), which the int8 kernel does not do"
        return ""

    def fuses(self, activation: Activation) -> bool:
        return True

    @staticmethod
    def grid(low: float, high: float) -> Grid:
        return Grid.affine(low, high)

    def oriented(self, core: NodeDef, weight: Array) -> Array:
        """[inputs, outputs]."""
        return weight.T if attribute(core, "transpose_b").b else weight

    def by_output(self, weight: Array) -> tuple[Array, int]:
        return weight.T, 1

    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        return np.ascontiguousarray(weight.T)

    def float_nodes(self, name: str, core: NodeDef, inputs: Sequence[str], dtype: tf.DType) -> list[NodeDef]:
        return [node(name, "MatMul", inputs, T=dtype, transpose_a=False, transpose_b=False)]

    def emit(self, emission: Emission, fused: FusedOp, scheme: Scheme) -> None:
        activations, graph = emission.activations, emission.graph
        x, source, multiplier = emission.input(fused, scheme)
        fusion = fused.summed or fused.plain
        weight, correction = emission.weight(fused, scheme, x, multiplier)
        numbers = emission.numbers(fused, weight, correction)
        kernel, bias, low, high = emission.parameters(fused.core, numbers)
        values = activations.matrix(x, fused.inner)
        output = _chain(emission, fused, fusion) if fusion.addend is None else None
        lifted = fused.lift is not None and fused.lift in fusion.members
        name = fusion.tail if output is None and not lifted else graph.fresh(f"{fusion.tail}/int8")
        ends = emission.ends(name, output) if output else None
        graph.add(
            quantized_matmul(
                name,
                (values, kernel, bias),
                (x.low, x.high, low, high),
                activation=fusion.activation.name if fusion.activation else None,
                alpha=fusion.activation.alpha if fusion.activation else 0.2,
                addend=_addend(emission, fused, fusion, values) if fusion.addend else None,
                output=ends,
            )
        )
        result: str | Quantized = fusion.output
        if output is not None and ends is not None:
            result = Quantized(f"{name}:0", *ends, output, rows=True)
            activations.provide(fusion.output, result)
            _sizes(emission, fused, fusion, result, lifted=lifted)
        elif lifted:
            _lift(emission, fused, fusion.tail, name, tf.float32)
        emission.pieces.append(
            Piece(fused, scheme, fusion, source, result, weight, multiplier, x, correction=correction)
        )


def _chain(emission: Emission, fused: FusedOp, fusion: Fusion) -> Grid | None:
    """The grid on which all readers of a matmul's output want it, if they are int8 matmuls and agree."""
    if not emission.reference.is_private(fusion.tail):
        return None
    readers = emission.readers.of(fusion.output, fused.kind)
    wanted = {emission.readers.static(reader) for reader in readers}
    through = {name for reader in readers for name in (*reader.path, reader.core)}
    waiting = [fusion.tail]
    while waiting:
        for follower in emission.reference.followers(waiting.pop()):
            if emission.reference.nodes[follower].op == "Shape":
                continue  # asks for sizes, which int8 has as well
            if follower not in through:
                return None
            if emission.reference.nodes[follower].op == "Reshape":
                if not emission.reference.is_private(follower):
                    return None
                waiting.append(follower)
    return wanted.pop() if len(wanted) == 1 else None


def _addend(emission: Emission, fused: FusedOp, fusion: Fusion, values: str) -> str:
    """The addend as rows. Where its shape is not proven to fit, a Reshape to the exact shape of the output
    raises if it does not.
    """
    addend, activations = str(fusion.addend), emission.activations
    if not fusion.guarded:
        fits = activations.is_matrix(addend)
        return addend if fits else activations.rows(addend, fused.columns, tf.float32, f"{fused.core}/addend")
    name = emission.graph.fresh(f"{fused.core}/addend")
    shape = f"{name}/shape"
    emission.graph.add(node(shape, "Shape", [values], T=tf.quint8, out_type=tf.int32))
    if fused.inner != fused.columns:
        ends = [
            activations.constant(f"{name}/{part}", [value])
            for part, value in (("begin", 0), ("end", 1), ("step", 1))
        ]
        masks = dict.fromkeys(
            ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
        )
        emission.graph.add(
            node(f"{name}/count", "StridedSlice", [shape, *ends], T=tf.int32, Index=tf.int32, **masks)
        )
        columns, axis = (
            activations.constant(f"{name}/columns", [fused.columns]),
            activations.constant(f"{name}/axis", 0),
        )
        emission.graph.add(
            node(
                f"{name}/sizes",
                "ConcatV2",
                [f"{name}/count", columns, axis],
                T=tf.int32,
                Tidx=tf.int32,
                N=2,
            )
        )
        shape = f"{name}/sizes"
    emission.graph.add(node(name, "Reshape", [addend, shape], T=tf.float32, Tshape=tf.int32))
    return name


def _lift(emission: Emission, fused: FusedOp, name: str, rows: str, dtype: tf.DType) -> None:
    """The Reshape behind a matmul, on another tensor."""
    lift = emission.reference.nodes[str(fused.lift)]
    emission.graph.add(
        node(
            name,
            "Reshape",
            [rows, lift.input[1]],
            T=dtype,
            Tshape=tf.as_dtype(attribute(lift, "Tshape").type),
        )
    )


def _sizes(emission: Emission, fused: FusedOp, fusion: Fusion, made: Quantized, *, lifted: bool) -> None:
    """Nodes that ask for the shape of an output that is now int8 only (tensordot does) read it there."""
    asking = [
        name
        for name, _ in emission.reference.readers(fusion.output)
        if emission.reference.nodes[name].op == "Shape"
    ]
    view = made.values
    if asking and lifted:
        view = emission.graph.fresh(f"{fusion.tail}/view")
        _lift(emission, fused, view, made.values, tf.quint8)
    for name in asking:
        kind = tf.as_dtype(attribute(emission.reference.nodes[name], "out_type").type)
        emission.graph.add(node(name, "Shape", [view], T=tf.quint8, out_type=kind))
