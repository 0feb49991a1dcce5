"""Convolutions with constant filters. Their kernels take uint8 from zero on or int8 around zero, and output
int8 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.emit import node, quantized_conv
from octune.backends.tensorflow.graph.graph import Array, attribute
from octune.backends.tensorflow.graph.shapes import Shape
from octune.backends.tensorflow.int8.activations import Quantized, plain_type, stored_type
from octune.backends.tensorflow.int8.emission import Emission, Numbers, Piece
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.backends.tensorflow.int8.kinds.base import Kind, Number
from octune.backends.tensorflow.int8.kinds.conv_output import ConvOutputs
from octune.backends.tensorflow.int8.passages import pool_before
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import repairs_of, static_schemes

__all__ = ["Conv2D", "Convolution", "Convolving", "DepthwiseConv2D", "geometry"]

GROUPS = 4  # more of them take longer in int8 than in fp32: benchmarks/ops.py


@dataclass(frozen=True, slots=True)
class Convolving:
    """One convolution while its nodes are added: what they are made from, and what they must return."""

    emission: Emission
    kernel: str
    core: NodeDef
    name: str  # of the node that returns the values
    x: Quantized
    x_shape: Shape
    y_shape: Shape
    grid: Grid
    ends: tuple[str, str]
    relu: bool
    summand: Quantized | None

    def add(self, name: str, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; its name is returned."""
        self.emission.graph.add(node(name, op, inputs, **attributes))
        return name

    def constant(self, name: str, value: Array | list[int] | int) -> str:
        """A constant; its name is returned."""
        return self.emission.activations.constant(f"{self.name}/{name}", value)

    def kernel_on(self, name: str, values: str, numbers: Numbers, how: dict[str, Any]) -> str:
        """The int8 kernel, on these values and numbers."""
        kernel, bias, low, high = self.emission.parameters(
            self.core.name if name == self.name else name, numbers
        )
        summand, x = self.summand, self.x
        self.emission.graph.add(
            quantized_conv(
                name,
                self.kernel,
                (values, kernel, bias),
                (x.low, x.high, low, high),
                self.ends,
                signed=(x.grid is not None and x.grid.signed, self.grid.signed),
                relu=self.relu,
                summand=(summand.values, summand.low, summand.high, False) if summand else None,
                geometry=how,
            )
        )
        return name


class Convolution(Kind):
    """What all convolutions have in common."""

    noun, without_weight = "convolution", "its weight is not a constant"
    rank, in_rows, outputs_int8, sum_needs_relu = 4, False, True, True
    layout: ClassVar[str] = "NHWC"

    def schemes(self) -> tuple[Scheme, ...]:
        return static_schemes()

    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        data_format = attribute(core, "data_format").s.decode()
        if data_format not in ("", self.layout):
            return f"its data format is {data_format}; int8 convolutions take {self.layout}"
        if x is None or len(x) != self.rank or x[-1] is None:
            return "the number of its input channels is not known"
        return ""

    def signature(self, core: NodeDef) -> str:
        return str(sorted(self.geometry(core).items()))

    def geometry(self, core: NodeDef) -> dict[str, Any]:
        """The attributes that the op and its int8 kernel share."""
        return geometry(core)

    def fuses(self, activation: Activation) -> bool:
        return activation.name in ("Relu", "Relu6")

    @staticmethod
    def grid(low: float, high: float) -> Grid:
        """From zero on if nothing is below it, else around zero."""
        plain = Grid.affine(low, high)
        return plain if plain.zero_point == 0 else Grid.symmetric(max(-plain.low, plain.high))

    def float_nodes(self, name: str, core: NodeDef, inputs: Sequence[str], dtype: tf.DType) -> list[NodeDef]:
        return [node(name, self.tf_op, inputs, T=dtype, data_format=self.layout, **self.geometry(core))]

    def simulate(self, core: NodeDef, x: Any, weight: Any) -> Any:
        convolve = getattr(tf.raw_ops, self.tf_op)
        return convolve(input=x, filter=weight, data_format=self.layout, **self.geometry(core))

    def convolve(self, at: Convolving, numbers: Numbers) -> None:
        """Add the nodes that compute it in int8."""
        at.kernel_on(at.name, at.x.values, numbers, self.geometry(at.core))

    def emit(self, emission: Emission, fused: FusedOp, scheme: Scheme) -> None:
        activations, graph = emission.activations, emission.graph
        x, source, multiplier = emission.input(fused, scheme)
        pool = pool_before(emission.reference, fused.x) if isinstance(source, Quantized) else None
        output = ConvOutputs(emission, self).of(fused, scheme)
        fusion, grid, summand, factors = output.fusion, output.grid, output.summand, output.factors
        weight, correction = emission.weight(fused, scheme, x, multiplier)
        name, core = graph.fresh(f"{fusion.tail}/int8"), emission.reference.nodes[fused.core]
        ends, relu = emission.ends(name, grid), fusion.activation is not None
        shapes = (emission.shapes[fused.x] or (), emission.shapes[f"{fused.core}:0"] or ())
        at = Convolving(emission, self.kernel, core, name, x, *shapes, grid, ends, relu, summand)
        self.convolve(at, emission.numbers(fused, weight, correction, factors))
        result = Quantized(f"{name}:0", *ends, grid, rows=False)
        # The floats are swept away at the end if all readers take the int8 one.
        if factors is None:
            activations.provide(fusion.output, result)
            _dequantize(emission, fusion.tail, result)
        elif output.taker is not None:
            made = result if output.pool is None else activations.pooled(output.pool, result)
            activations.provide_smoothed(output.taker.fused_ops[0].x, output.taker, made, result)
        else:
            _dequantize(emission, f"{name}/float", result)
            activations.scaled(fusion.tail, f"{name}/float", 1 / factors)
        numbers = (weight, multiplier, x, summand, correction, factors)
        emission.pieces.append(Piece(fused, scheme, fusion, source, result, *numbers, pool))


class Conv2D(Convolution):
    """``Conv2D``; filters are [height, width, inputs, outputs]. In ``groups``, each output reads a part of
    the channels, and there is one int8 convolution for each group.
    """

    name, tf_op, kernel = "conv2d", "Conv2D", "_FusedQuantizedConv2D"

    def __init__(self, groups: int = 1) -> None:
        self._groups, self.sums = groups, groups == 1

    def refined(self, weight: Array, x: Shape | None, y: Shape | None) -> Kind:
        channels = x[-1] if x else None
        return type(self)(channels // weight.shape[2]) if channels else self

    def schemes(self) -> tuple[Scheme, ...]:
        """Without those that multiply channels where groups have their own."""
        return tuple(s for s in super().schemes() if self._groups == 1 or not repairs_of(s).smooths)

    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        if self._groups > GROUPS:
            return (
                f"in int8, its {self._groups} groups are as many convolutions, which takes longer than fp32"
            )
        return super().cannot(core, weight, x)

    def by_output(self, weight: Array) -> tuple[Array, int]:
        return weight.transpose(3, 2, 0, 1), self._groups

    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))

    def convolve(self, at: Convolving, numbers: Numbers) -> None:
        if self._groups == 1:
            super().convolve(at, numbers)
            return
        stored, plain = stored_type(at.x.grid), plain_type(at.x.grid)
        axis = at.constant("axis", 3)
        # Split knows these types only by their plain names
        values = at.add(f"{at.name}/values", "Bitcast", at.x.values, T=stored, type=plain)
        split = at.add(f"{at.name}/split", "Split", axis, values, T=plain, num_split=self._groups)
        made = []
        for group in range(self._groups):
            name = f"{at.name}/group_{group}"
            x = at.add(f"{name}/x", "Bitcast", f"{split}:{group}", T=plain, type=stored)
            made.append(at.kernel_on(name, x, numbers.part(group, self._groups), self.geometry(at.core)))
        at.add(at.name, "ConcatV2", *made, axis, N=len(made), T=stored_type(at.grid), Tidx=tf.int32)


class DepthwiseConv2D(Convolution):
    """One or more filters for each channel; filters are [height, width, channels, filters of a channel]."""

    name, tf_op, kernel = "depthwise_conv2d", "DepthwiseConv2dNative", "_FusedQuantizedDepthwiseConv2D"

    def columns(self, weight: Array) -> int:
        return int(weight.shape[2] * weight.shape[3])

    def by_output(self, weight: Array) -> tuple[Array, int]:
        height, width, channels, multiplier = weight.shape
        return weight.transpose(2, 3, 0, 1).reshape(channels * multiplier, 1, height, width), channels

    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        height, width, channels, multiplier = shape
        return np.ascontiguousarray(weight.reshape(channels, multiplier, height, width).transpose(2, 3, 0, 1))


def geometry(core: NodeDef) -> dict[str, Any]:
    """Strides, dilations and padding of a convolution."""
    attributes = {
        name: [int(i) for i in attribute(core, name).list.i]
        for name in ("strides", "dilations", "explicit_paddings")
    }
    return {
        **attributes,
        "dilations": attributes["dilations"] or [1, 1, 1, 1],
        "padding": attribute(core, "padding").s.decode(),
    }


def _dequantize(emission: Emission, name: str, made: Quantized) -> None:
    kind, how = (
        (tf.qint8, "SCALED") if made.grid is not None and made.grid.signed else (tf.quint8, "MIN_FIRST")
    )
    inputs = [made.values, made.low, made.high]
    emission.graph.add(
        node(name, "Dequantize", inputs, T=kind, mode=how, dtype=tf.float32, narrow_range=False, axis=-1)
    )
