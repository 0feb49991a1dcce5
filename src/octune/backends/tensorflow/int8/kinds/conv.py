"""Convolutions with constant filters. Their kernels take uint8 from zero on or int8 around zero, and output
int8 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.emit import node, quantized_conv
from octune.backends.tensorflow.graph.graph import Array, attribute
from octune.backends.tensorflow.graph.shapes import Shape
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.emission import Emission, Piece
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.backends.tensorflow.int8.kinds.base import Kind, Number
from octune.backends.tensorflow.int8.kinds.conv_output import ConvOutputs
from octune.backends.tensorflow.int8.passages import pool_before
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import static_schemes

__all__ = ["Conv2D", "DepthwiseConv2D"]


class _Conv(Kind):
    """What both convolutions have in common."""

    noun, without_weight = "convolution", "its weight is not a constant"
    rank, in_rows, outputs_int8, sum_needs_relu = 4, False, True, True

    def schemes(self) -> tuple[Scheme, ...]:
        return static_schemes()

    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        data_format = attribute(core, "data_format").s
        if data_format not in (b"", b"NHWC"):
            return f"its data format is {data_format.decode()}; int8 convolutions take NHWC"
        if x is None or len(x) != 4 or x[3] is None:
            return "the number of its input channels is not known"
        if x[3] != weight.shape[2]:
            return f"it is a grouped convolution ({x[3]} channels in, {weight.shape[2]} for each group)"
        return ""

    def signature(self, core: NodeDef) -> str:
        return str(sorted(_geometry(core).items()))

    def fuses(self, activation: Activation) -> bool:
        return activation.name in ("Relu", "Relu6")

    @staticmethod
    def grid(low: float, high: float) -> Grid:
        """From zero on if nothing is below it, else around zero."""
        plain = Grid.affine(low, high)
        return plain if plain.zero_point == 0 else Grid.symmetric(max(-plain.low, plain.high))

    def float_node(self, name: str, core: NodeDef, inputs: Sequence[str], dtype: tf.DType) -> NodeDef:
        return node(name, self.tf_op, inputs, T=dtype, data_format="NHWC", **_geometry(core))

    def simulate(self, core: NodeDef, x: Any, weight: Any) -> Any:
        convolve = getattr(tf.raw_ops, self.tf_op)
        return convolve(input=x, filter=weight, data_format="NHWC", **_geometry(core))

    def emit(self, emission: Emission, fused: FusedOp, scheme: Scheme) -> None:
        activations, graph = emission.activations, emission.graph
        x, source, multiplier = emission.input(fused, scheme)
        pool = pool_before(emission.reference, fused.x) if isinstance(source, Quantized) else None
        output = ConvOutputs(emission, self).of(fused, scheme)
        fusion, grid, summand, factors = output.fusion, output.grid, output.summand, output.factors
        weight, correction = emission.weight(fused, scheme, x, multiplier)
        kernel, bias, low, high = emission.parameters(fused, weight, correction, factors)
        name = graph.fresh(f"{fusion.tail}/int8")
        ends = emission.ends(name, grid)
        graph.add(
            quantized_conv(
                name,
                self.kernel,
                (x.values, kernel, bias),
                (x.low, x.high, low, high),
                ends,
                signed=(x.grid is not None and x.grid.signed, grid.signed),
                relu=fusion.activation is not None,
                summand=(summand.values, summand.low, summand.high, False) if summand else None,
                geometry=_geometry(emission.reference.nodes[fused.core]),
            )
        )
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
        numbers = (weight, multiplier, x.grid, summand, correction, factors)
        emission.pieces.append(Piece(fused, scheme, fusion, source, result, *numbers, pool))


class Conv2D(_Conv):
    """``Conv2D`` without groups; filters are [height, width, inputs, outputs]."""

    name, tf_op, kernel = "conv2d", "Conv2D", "_FusedQuantizedConv2D"

    def by_output(self, weight: Array) -> tuple[Array, int]:
        return weight.transpose(3, 2, 0, 1), 1

    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))


class DepthwiseConv2D(_Conv):
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


def _geometry(core: NodeDef) -> dict[str, Any]:
    """The attributes that a convolution and its int8 kernel share."""
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
