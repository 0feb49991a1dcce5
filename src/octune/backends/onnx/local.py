"""What one op answers in one scheme, given its fp32 input: its error, without building a model around it.

    error = LocalErrors(store, smoother, ranges)(found, scheme, x, b, y)     # quantized answer minus y

Numbers are those of the int8 kernels: integers times steps, up to the order of summation.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, ValueInfoProto, helper

from octune.backends.base import OUTPUT, B
from octune.backends.onnx.discover import Found
from octune.backends.onnx.graph import Array, Model
from octune.backends.onnx.runtimes import session
from octune.backends.onnx.smooth import Group, Smoother, output_range
from octune.backends.onnx.weights import WeightStore
from octune.calibration import Ranges, choose_range
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["LocalErrors"]

FEW = 256


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
            return np.asarray(self._store.get(item, scheme).dequantized()[x] - y, np.float32)
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
        second = Grid.symmetric(max(-ends[0], ends[1]), self._store.largest_activation)
        product = np.matmul(Grid.affine(low, high).round_trip(x), second.round_trip(b))
        return np.asarray(product - y, np.float32)

    def _weighted(
        self, item: Found, scheme: Scheme, x: Array, y: Array, owns_output: bool, few: bool
    ) -> Array:
        name, multiplier, stats = item.op.name, None, self._ranges.get(item.op.name)
        repairs = repairs_of(scheme)
        group = self._smoother.group(item, self._ranges) if repairs.smooths else None
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
        packed = self._store.get(item, scheme, multiplier)
        weight = packed.dequantized()
        # The store keeps every weight, so that its id stays its own: schemes that differ in the bias alone
        # share it, and the product.
        key = (low, high, id(packed), few)
        if key not in self._products:
            self._products[key] = self._compute(item, Grid.affine(low, high).round_trip(x), weight)
        got = self._products[key]
        if repairs.corrects_bias and stats is not None and item.weight is not None:
            shift = repairs.bias_shift(stats, item.weight, weight, item.groups, multiplier)
            got = got + _along(shift, item, got.ndim)
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
        rounded = Grid.affine(low, high).round_trip(got * wide) / wide
        # What a ReLU drops is not an error: its range begins at zero.
        return np.asarray(rounded - (np.maximum(y, 0.0) if seen.low >= 0 else y), np.float32)

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
