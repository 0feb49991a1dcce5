"""Weights and biases of int8 ops, written into a graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.weights import Int8Weights
from octune.calibration import Ranges
from octune.int8 import Int8Weight, by_output
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["ConstantWriter"]

LARGEST_BIAS = 2.0**30


class ConstantWriter:
    """Writes the constants of ops. ``factors`` is what the output channels of an op are multiplied by."""

    def __init__(
        self, edit: Edit, weights: Int8Weights, ranges: Ranges, factors: Mapping[str, Array]
    ) -> None:
        self._edit, self._weights, self._ranges, self._factors = edit, weights, ranges, factors

    def int8(self, found: Found, scheme: Scheme, multiplier: Array | None) -> tuple[Int8Weight, Array | None]:
        """int8 weights and the bias that goes with them (None: no bias), both multiplied by the output's
        factors. Nothing is written yet.
        """
        made, bias = self._weights.get(found, scheme, multiplier), found.bias
        stats, repairs = self._ranges.get(found.op.name), repairs_of(scheme)
        if repairs.corrects_bias and stats is not None and found.weight is not None:
            shift = repairs.bias_shift(stats, found.weight, made.dequantized(), found.groups, multiplier)
            bias = shift if bias is None else bias + shift
        factors = self._factors.get(found.op.name)
        if factors is None:
            return made, bias
        scaled = Int8Weight(made.values, np.broadcast_to(made.scales, factors.shape) * factors)
        return scaled, None if bias is None else bias * factors

    @staticmethod
    def fitting(made: Int8Weight, bias: Array, step: float) -> Int8Weight:
        """Weights coarse enough for the bias: it is counted in steps of input times weight, and must not
        overflow 32 bits.
        """
        least = (np.abs(bias) / (LARGEST_BIAS * step)).astype(np.float32)
        if not (least > made.scales).any():
            return made
        scales = np.maximum(np.broadcast_to(made.scales, least.shape), least)
        coarser = np.rint(made.values * by_output(made.scales / scales, made.values.ndim))
        return Int8Weight(coarser.astype(np.int8), scales)

    def integers(self, found: Found, made: Int8Weight) -> list[str]:
        """Store int8 weights; returns the names of values, scales and zero points."""
        inputs_first, name = found.kind.inputs_first, found.op.name
        values = np.asarray(made.values.swapaxes(0, 1), order="C") if inputs_first else made.values
        scales = made.scales.reshape(()) if made.scales.size == 1 else made.scales
        return [
            self._edit.tensor(f"{name}/weight_int8", values),
            self._edit.tensor(f"{name}/weight_scale", np.asarray(scales, np.float32, order="C")),
            self._edit.tensor(f"{name}/weight_zero", np.zeros(scales.shape, np.int8)),
        ]

    def weight(self, found: Found, made: Int8Weight) -> str:
        """Store int8 weights, and add the node that reads them as floats."""
        names, axis = self.integers(found, made), 1 if found.kind.inputs_first else 0
        return self._edit.start(
            "DequantizeLinear", names, self._edit.name(f"{found.op.name}/weight"), axis=axis
        )

    def bias(self, found: Found, bias: Array, steps: Array) -> str:
        """Store a bias as 32-bit counts of steps, and add the node that reads them as floats."""
        name, shape = found.op.name, () if steps.size == 1 else steps.shape
        counts = np.clip(np.rint(bias / steps.astype(np.float64)), -(2.0**31) + 1, 2.0**31 - 1)
        names = [
            self._edit.tensor(f"{name}/bias_int32", counts.astype(np.int32)),
            self._edit.tensor(f"{name}/bias_scale", steps.reshape(shape)),
            self._edit.tensor(f"{name}/bias_zero", np.zeros(shape, np.int32)),
        ]
        return self._edit.start("DequantizeLinear", names, self._edit.name(f"{name}/bias"), axis=0)

    def scale_float(self, found: Found, node: NodeProto, *, inputs_first: bool) -> None:
        """Let a node read float weights and a bias that are multiplied by the output's factors."""
        factors, weight = self._factors[found.op.name], found.weight
        if weight is None:
            raise ValueError(f"{found.op.name} has no weight")
        wide = weight * by_output(factors, weight.ndim)
        wide = np.asarray(wide.swapaxes(0, 1) if inputs_first else wide, order="C")
        node.input[1] = self._edit.tensor(f"{found.op.name}/weight_scaled", wide)
        if found.bias is not None:
            node.input[2] = self._edit.tensor(f"{found.op.name}/bias_scaled", found.bias * factors)
