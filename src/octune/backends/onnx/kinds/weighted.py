"""What linear ops and convolutions have in common: a stored weight that their input is multiplied with."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.kinds.base import Found, Kind
from octune.backends.terms import OUTPUT
from octune.int8 import LARGEST, Grid
from octune.plan import Op, Scheme
from octune.repair import repairs_of

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors

__all__ = ["Weighted", "stored_bias", "with_weight"]


def with_weight(
    kind: Kind,
    index: int,
    node: NodeProto,
    weight: Array,
    groups: int = 1,
    bias: Array | None = None,
    signature: str = "",
) -> Found:
    """An op with this weight, unless its numbers cannot be int8."""
    if weight.dtype != np.float32:
        return kind.left_in_float(index, node, f"its weight is {weight.dtype}; float32 is expected")
    if not np.isfinite(weight).all():
        return kind.left_in_float(index, node, "its weight holds infinities or NaN")
    op = Op(node.name, kind.name, kind.schemes(), int(weight.size), signature)
    return Found(kind, op, index, node, weight, groups, bias)


def stored_bias(view: View, node: NodeProto) -> tuple[Array | None, bool]:
    """The bias that a node reads in its third slot, and whether it is computed, so that it is not known."""
    if len(node.input) < 3 or not node.input[2]:
        return None, False
    bias = view.constant(node.input[2])
    return bias, bias is None


class Weighted(Kind):
    """An op that multiplies its input with a stored weight and adds a bias."""

    @abstractmethod
    def product(self, at: OpErrors, x: Array, weight: Array) -> Array:
        """What the op computes from an input and a weight, without its bias."""

    def sample(self, array: Array) -> Array:
        """Enough rows of an input or an output to compare schemes on."""
        return array

    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        context, found, (x,), y = at.context, at.found, at.inputs, at.y
        repairs, stats, multiplier = repairs_of(scheme), context.ranges.get(found.op.name), None
        group = context.groups.of(found) if repairs.smooths else None
        if group is not None:
            multiplier = group.smoothing.multiplier
            x = x * found.along_channels(multiplier, x.ndim)
            low, high = group.smoothing.low, group.smoothing.high
        elif scheme.is_dynamic or stats is None:
            low, high = float(x.min(initial=0.0)), float(x.max(initial=0.0))
        else:
            low, high = context.range(found.op.name, scheme)
        if few:
            x, y = self.sample(x), self.sample(y)
        weight = context.weights.get(found, scheme, multiplier).dequantized()
        # Schemes that differ in the bias alone have the same product.
        by_row = scheme.mode == "token"
        key = (low, high, by_row, few, scheme.granularity, repairs.weight_names, repairs.smooths)
        if key not in at.products:
            rounded = _by_row(x) if by_row else Grid.affine(low, high).round_trip(x)
            at.products[key] = self.product(at, rounded, weight)
        got = at.products[key]
        if repairs.corrects_bias and stats is not None and found.weight is not None:
            shift = repairs.bias_shift(stats, found.weight, weight, found.groups, multiplier)
            got = got + found.along_channels(shift, got.ndim)
        if found.bias is not None:
            got = got + found.along_channels(found.bias, got.ndim)
        if at.owns_output and found.op.name + OUTPUT in context.ranges:
            return context.rounding(found, got, y, scheme)
        return np.asarray(got - y, np.float32)


def _by_row(x: Array) -> Array:
    """An activation whose rows are rounded to grids of their own."""
    steps = np.maximum(np.abs(x).max(-1, keepdims=True, initial=0.0) / LARGEST, np.finfo(np.float32).tiny)
    return np.asarray(np.rint(x / steps) * steps, np.float32)
