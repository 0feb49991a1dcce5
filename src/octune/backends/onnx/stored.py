"""Weights and biases of int8 ops, written into a graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octune.backends.onnx.discover import Found
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array
from octune.backends.onnx.weights import WeightStore
from octune.calibration import Ranges
from octune.int8 import Int8Weight, by_output
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["Stored"]

LARGEST_BIAS = 2.0**30


class Stored:
    """Makes the constants of ops. ``factors`` is what the output channels of an op are multiplied by."""

    def __init__(self, edit: Edit, store: WeightStore, ranges: Ranges, factors: Mapping[str, Array]) -> None:
        self._edit, self._store, self._ranges, self._factors = edit, store, ranges, factors

    def packed(
        self, item: Found, scheme: Scheme, multiplier: Array | None
    ) -> tuple[Int8Weight, Array | None]:
        """int8 weights and the bias that goes with them (None: no bias), both with the output's factors in
        them.
        """
        packed = self._store.get(item, scheme, multiplier)
        bias = item.bias
        stats = self._ranges.get(item.op.name)
        repairs = repairs_of(scheme)
        if repairs.corrects_bias and stats is not None and item.weight is not None:
            shift = repairs.bias_shift(stats, item.weight, packed.dequantized(), item.groups, multiplier)
            bias = shift if bias is None else bias + shift
        factors = self._factors.get(item.op.name)
        if factors is None:
            return packed, bias
        return Int8Weight(
            packed.values, np.broadcast_to(packed.scales, factors.shape) * factors
        ), None if bias is None else bias * factors

    @staticmethod
    def fitting(packed: Int8Weight, bias: Array, step: float) -> Int8Weight:
        """Weights coarse enough for the bias: it is counted in steps of input times weight, and must not
        overflow 32 bits.
        """
        least = (np.abs(bias) / (LARGEST_BIAS * step)).astype(np.float32)
        if not (least > packed.scales).any():
            return packed
        scales = np.maximum(np.broadcast_to(packed.scales, least.shape), least)
        return Int8Weight(
            np.rint(packed.values * by_output(packed.scales / scales, packed.values.ndim)).astype(np.int8),
            scales,
        )

    def integers(self, item: Found, packed: Int8Weight, *, inputs_first: bool) -> list[str]:
        """Store int8 weights: the names of values, scales and zero points."""
        values = np.asarray(packed.values.swapaxes(0, 1), order="C") if inputs_first else packed.values
        scales = packed.scales.reshape(()) if packed.scales.size == 1 else packed.scales
        return [
            self._edit.tensor(f"{item.op.name}/weight_int8", values),
            self._edit.tensor(f"{item.op.name}/weight_scale", np.asarray(scales, np.float32, order="C")),
            self._edit.tensor(f"{item.op.name}/weight_zero", np.zeros(scales.shape, np.int8)),
        ]

    def weight(self, item: Found, packed: Int8Weight, *, inputs_first: bool) -> str:
        """Store int8 weights, and add the node that reads them as floats."""
        names = self.integers(item, packed, inputs_first=inputs_first)
        return self._edit.start(
            "DequantizeLinear",
            names,
            self._edit.name(f"{item.op.name}/weight"),
            axis=1 if inputs_first else 0,
        )

    def bias(self, item: Found, bias: Array, steps: Array) -> str:
        """Store a bias as 32-bit counts of steps, and add the node that reads them as floats."""
        whole = steps.size == 1
        counts = np.clip(np.rint(bias / steps.astype(np.float64)), -(2.0**31) + 1, 2.0**31 - 1).astype(
            np.int32
        )
        names = [
            self._edit.tensor(f"{item.op.name}/bias_int32", counts),
            self._edit.tensor(f"{item.op.name}/bias_scale", steps.reshape(()) if whole else steps),
            self._edit.tensor(f"{item.op.name}/bias_zero", np.zeros(() if whole else steps.shape, np.int32)),
        ]
        return self._edit.start("DequantizeLinear", names, self._edit.name(f"{item.op.name}/bias"), axis=0)

    def scaled_float(self, item: Found, *, inputs_first: bool) -> tuple[str, str | None]:
        """Float weights and bias with the output's factors in them."""
        factors, weight = self._factors[item.op.name], item.weight
        if weight is None:
            raise ValueError(f"{item.op.name} has no weight")
        wide = weight * by_output(factors, weight.ndim)
        name = self._edit.tensor(
            f"{item.op.name}/weight_scaled",
            np.asarray(wide.swapaxes(0, 1) if inputs_first else wide, order="C"),
        )
        return name, None if item.bias is None else self._edit.tensor(
            f"{item.op.name}/bias_scaled", item.bias * factors
        )
