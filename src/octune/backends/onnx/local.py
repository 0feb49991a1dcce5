"""What one op answers in one scheme, given its fp32 input: its error, without building a model around it.

    error = LocalErrors(store, smoother, ranges)(found, scheme, x, b, y)     # quantized answer minus y

Numbers are those of the int8 kernels: integers times steps, up to the order of summation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, ValueInfoProto, helper

from octune.backends.onnx.discover import OUTPUT, B, Found
from octune.backends.onnx.graph import Array, Model
from octune.backends.onnx.runtimes import session
from octune.backends.onnx.smooth import Group, Smoother, output_range
from octune.backends.onnx.weights import WeightStore, per_input
from octune.calibration import Ranges, affine_uint8, choose_range
from octune.plan import Scheme
from octune.repair import BIAS, SMOOTH, bias_correction

__all__ = ["LocalErrors", "on_grid"]

FEW = 256


def on_grid(array: Array, low: float, high: float) -> Array:
    """What is left of numbers when they are quantized to uint8 in a range."""
    scale, zero = affine_uint8(low, high)
    levels = np.clip(np.rint(array / np.float32(scale)) + zero, 0, 255)
    return np.asarray((levels - zero) * np.float32(scale), np.float32)


class LocalErrors:
    """Computes ops in float on numbers that lie on their int8 grids."""

    def __init__(self, store: WeightStore, smoother: Smoother, ranges: Ranges, threads: int | None) -> None:
        self._store, self._smoother, self._ranges, self._threads = store, smoother, ranges, threads
        self._convs: dict[str, ort.InferenceSession] = {}
        self._about: tuple[Found, Array] | None = None
        self._products: dict[tuple[object, ...], Array] = {}

    def __call__(
        self,
        item: Found,
        scheme: Scheme,
        x: Array,
        b: Array | None,
        y: Array,
        *,
        owns_output: bool,
        few: bool = False,
    ) -> Array:
        """The error of this op's output in this scheme. ``owns_output``: rounding its output counts as its
        own, too.

        With ``few``, of a linear op some rows only, spread over all: enough to compare schemes.
        """
        if self._about is None or self._about[0] is not item or self._about[1] is not x:
            self._about, self._products = (item, x), {}
        if item.op.kind == "embedding":
            return np.asarray(self._store.get(item, scheme.granularity).dequantized()[x] - y, np.float32)
        if item.op.kind == "attention":
            return self._attention(item, scheme, x, b, y)
        return self._weighted(item, scheme, x, y, owns_output, few and not item.is_conv)

    def group(self, item: Found) -> Group | None:
        """The ops that would be smoothed with this one, if it can be."""
        return (
            None
            if item.weight is None or item.op.kind == "embedding"
            else self._smoother.group(item, self._ranges)
        )

    def _attention(self, item: Found, scheme: Scheme, x: Array, b: Array | None, y: Array) -> Array:
        if b is None:
            raise ValueError(f"{item.op.name} needs two operands")
        low, high = choose_range(self._ranges[item.op.name], scheme.range_method or "minmax")
        ends = choose_range(self._ranges[item.op.name + B], scheme.range_method or "minmax")
        step = np.float32(max(-ends[0], ends[1]) / self._store.largest_activation or 1.0)
        signed = np.clip(np.rint(b / step), -128, 127) * step
        return np.asarray(np.matmul(on_grid(x, low, high), signed) - y, np.float32)

    def _weighted(
        self, item: Found, scheme: Scheme, x: Array, y: Array, owns_output: bool, few: bool
    ) -> Array:
        name, multiplier, stats = item.op.name, None, self._ranges.get(item.op.name)
        group = self._smoother.group(item, self._ranges) if SMOOTH in scheme.repairs else None
        if group is not None:
            multiplier = group.smoothing.multiplier
            x = x * (multiplier if not item.is_conv else multiplier.reshape(-1, *[1] * (x.ndim - 2)))
            low, high = group.smoothing.low, group.smoothing.high
        elif scheme.mode == "dynamic" or stats is None:
            low, high = float(x.min(initial=0.0)), float(x.max(initial=0.0))
        else:
            low, high = choose_range(stats, scheme.range_method or "minmax")
        if few:
            x, y = _some_rows(x), _some_rows(y)
        weight = self._store.get(item, scheme.granularity, multiplier).dequantized()
        key = (low, high, scheme.granularity, multiplier is None, few)
        if key not in self._products:  # schemes that differ in the bias alone share their product
            self._products[key] = self._compute(item, on_grid(x, low, high), weight)
        got = self._products[key]
        if BIAS in scheme.repairs and stats is not None and item.weight is not None:
            exact = (
                item.weight
                if multiplier is None
                else item.weight / per_input(multiplier, item.weight, item.groups)
            )
            if multiplier is not None and stats.channel_mean.size:
                stats = replace(stats, channel_mean=stats.channel_mean * multiplier)
            got = got + _along(bias_correction(stats, exact, weight, item.groups), item, got.ndim)
        if item.bias is not None:
            got = got + _along(item.bias, item, got.ndim)
        if owns_output and name + OUTPUT in self._ranges:
            return self.rounding(item, got, y, scheme)
        return np.asarray(got - y, np.float32)

    def rounding(
        self, item: Found, got: Array, y: Array, scheme: Scheme, factors: Array | None = None
    ) -> Array:
        """The error of an op's output ``y`` when ``got`` is quantized in its stead, its channels multiplied
        by ``factors`` before that.
        """
        seen = self._ranges[item.op.name + OUTPUT]
        low, high = output_range(
            self._ranges, item.op.name, factors, choose_range(seen, scheme.range_method or "minmax")
        )
        wide = np.float32(1.0) if factors is None else _along(factors, item, y.ndim)
        # What a ReLU drops is no error: its range begins at zero.
        return np.asarray(
            on_grid(got * wide, low, high) / wide - (np.maximum(y, 0.0) if seen.low >= 0 else y), np.float32
        )

    def _compute(self, item: Found, x: Array, weight: Array) -> Array:
        if not item.is_conv:
            return np.asarray(np.matmul(x, weight.T))
        if item.op.kind == "conv_transpose":
            weight = weight.swapaxes(0, 1)
        key = item.op.signature
        if key not in self._convs:
            self._convs[key] = session(_alone(item), self._threads)
        return np.asarray(self._convs[key].run(None, {"x": x, "w": np.asarray(weight, order="C")})[0])


def _some_rows(array: Array) -> Array:
    rows = array.reshape(-1, array.shape[-1])
    return rows[:: max(1, len(rows) // FEW)]


def _along(vector: Array, item: Found, ndim: int) -> Array:
    return vector.reshape(-1, *[1] * (ndim - 2)) if item.is_conv else vector


def _alone(item: Found) -> Model:
    """A model of one convolution, with input and weight for inputs."""
    node = helper.make_node(item.node.op_type, ["x", "w"], ["y"])
    node.attribute.extend(item.node.attribute)
    rank = 0 if item.weight is None else item.weight.ndim
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in ("x", "w")]
    graph = helper.make_graph([node], "alone", inputs, [ValueInfoProto(name="y")])
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
