"""From a plan and known ranges to a graph with Q/DQ nodes, in about the time it takes to write the graph
down.

    model = quantized_graph(view, found, plan, weights, groups, ONNX_RUNTIME)

Every kind of op writes its own nodes, with what an :class:`Insertion` offers to all of them. Where nodes go
follows what runtimes fuse into int8 kernels:
- One Q/DQ pair for all readers of a tensor.
- ONNX Runtime runs a convolution in int8 only if its output is quantized as well, and OpenVINO is faster with
  it. Readers of that tensor then all read the quantized one, so that int8 flows from layer to layer, through
  pooling and residual additions.
- OpenVINO fuses any activation function into a convolution, so there is nothing to quantize between the two.
- OpenVINO wants activations of matrix products signed, without a zero point: it has no int8 attention with
  one. Those of convolutions have one: some of its convolutions are wrong for signed input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octune.backends.base import OUTPUT
from octune.backends.onnx.activation import feeds_activation
from octune.backends.onnx.constant_writer import ConstantWriter
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.runtimes import Runtime
from octune.backends.onnx.smoothing import SmoothingEdit, SmoothingGroups, output_range
from octune.backends.onnx.weights import Int8Weights
from octune.calibration import choose_range
from octune.errors import PlanError
from octune.int8 import LARGEST, Grid
from octune.plan import Plan, Scheme

__all__ = ["Insertion", "QuantizedTensor", "quantized_graph"]

# Below this share of the other side, the negative side of a range is worth a zero point even to OpenVINO.
LOPSIDED = 0.3


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """An activation in int8: the names of both its forms, its scale, and the ops that asked for it."""

    quantized: str
    dequantized: str
    scale: float
    users: list[Found] = field(default_factory=list)


def quantized_graph(
    view: View,
    found: Sequence[Found],
    plan: Plan,
    weights: Int8Weights,
    groups: SmoothingGroups,
    runtime: Runtime,
) -> Model:
    """The graph under a plan, with the ranges that ``groups`` was made for. Ops that the plan does not name
    stay as they are.
    """
    planned = [(item, plan[item.op.name]) for item in found if item.op.name in plan]
    insertion = Insertion(view, [(i, s) for i, s in planned if not s.is_float], weights, groups, runtime)
    return insertion.model(found)


class Insertion:
    """A graph while int8 ops are written into it, and what they share."""

    def __init__(
        self,
        view: View,
        planned: Sequence[tuple[Found, Scheme]],
        weights: Int8Weights,
        groups: SmoothingGroups,
        runtime: Runtime,
    ) -> None:
        self.view, self.weights = view, weights
        self.edit = Edit(view)
        self.smoothing = SmoothingEdit(self.edit, planned, groups)
        self.constants = ConstantWriter(self.edit, weights, groups.ranges, self.smoothing.factors)
        self._planned, self._ranges, self._runtime = planned, groups.ranges, runtime
        self._quantized: dict[str, dict[tuple[float, float, bool, bool], QuantizedTensor]] = {}
        self._dynamic: dict[str, tuple[str, ...]] = {}

    def model(self, found: Sequence[Found]) -> Model:
        """Write all ops; returns the graph."""
        for item, scheme in self._planned:
            item.kind.insert(self, item, scheme)
        written = {item.op.name for item, _ in self._planned}
        for item in found:
            if item.op.name in self.smoothing.factors and item.op.name not in written:
                item.kind.scale_output(self, item)
        self.smoothing.finish()
        self._let_int8_flow()
        return self.edit.finish()

    @property
    def own_ops(self) -> bool:
        """Whether the runtime has the ops that ONNX Runtime adds to ONNX."""
        return self._runtime.own_ops

    # -- for kinds of ops ------------------------------------------------------------------------------------

    def range(self, name: str, scheme: Scheme) -> tuple[float, float]:
        """The range of a tensor that calibration looked at."""
        if name not in self._ranges:
            raise PlanError(
                f"The plan asks for {scheme} at {name!r}, but calibration never saw its input. Give "
                "calibration data."
            )
        return choose_range(self._ranges[name], scheme.range_method or "minmax")

    def quantized(
        self, tensor: str, low: float, high: float, user: Found, *, weight_like: bool = False
    ) -> QuantizedTensor:
        """The Q/DQ pair of a tensor in a range; made once for all ops that want the same. ``weight_like``:
        signed, as kernels want weights to be.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        signed = weight_like or (
            self._runtime.signed_activations and not user.kind.zero_points and -low > LOPSIDED * high
        )
        known = self._quantized.setdefault(tensor, {})
        key = (low, high, signed, weight_like)
        if key not in known:
            largest = self.weights.largest_activation if weight_like else LARGEST
            grid = Grid.symmetric(max(-low, high), largest) if signed else Grid.affine(low, high)
            known[key] = self._pair(tensor, grid)
        known[key].users.append(user)
        return known[key]

    def quantized_input(self, found: Found, scheme: Scheme) -> tuple[QuantizedTensor, Array | None]:
        """The quantized input of an op with a weight, which the op is made to read; and what its channels
        were multiplied by.
        """
        tensor, multiplier = self.smoothing.input(found)
        source = found.source(self.view) if tensor == found.x else tensor
        low, high = self.smoothing.range(found) or self.range(found.op.name, scheme)
        made = self.quantized(source, low, high, found)
        if tensor == found.x:
            self.rewire(found, 0, source, made.dequantized)
        else:
            self.edit.node(found.index).input[found.kind.slots[0]] = made.dequantized
        return made, multiplier

    def dynamically_quantized(self, tensor: str) -> tuple[str, ...]:
        """A tensor in int8 whose range is found at run time: the names of its values, scale and zero
        point.
        """
        if tensor not in self._dynamic:
            parts = ("quantized", "scale", "zero")
            self._dynamic[tensor] = tuple(self.edit.name(f"{tensor}/dynamic_{part}") for part in parts)
            self.edit.after(tensor, "DynamicQuantizeLinear", [tensor], *self._dynamic[tensor])
        return self._dynamic[tensor]

    def rewire(self, found: Found, operand: int, tensor: str, replacement: str) -> None:
        """Let an op read ``replacement`` where ``tensor``, or what it was moved to, is its input."""
        index, at = found.index, found.kind.slots[operand]
        while self.view.nodes[index].input[at] != tensor:
            before = self.view.producer(self.view.nodes[index].input[at])
            if before is None:
                raise PlanError(f"{tensor!r} does not lead to {found.op.name!r}")
            index, at = before, 0
        self.edit.node(index).input[at] = replacement

    def _pair(self, tensor: str, grid: Grid) -> QuantizedTensor:
        edit, zero = self.edit, np.asarray(grid.zero_point, np.int8 if grid.signed else np.uint8)
        parameters = [
            edit.tensor(f"{tensor}/scale", np.asarray(grid.scale, np.float32)),
            edit.tensor(f"{tensor}/zero", zero),
        ]
        quantized = edit.after(
            tensor, "QuantizeLinear", [tensor, *parameters], edit.name(f"{tensor}/quantized")
        )
        dequantized = edit.after(
            tensor, "DequantizeLinear", [quantized, *parameters], edit.name(f"{tensor}/dequantized")
        )
        return QuantizedTensor(quantized, dequantized, grid.scale)

    # -- int8 from layer to layer ----------------------------------------------------------------------------

    def _let_int8_flow(self) -> None:
        for item, scheme in self._planned:
            output = item.kind.quantized_output(self.view, item)
            if output is not None:
                self._quantize_output(item, scheme, output)
        for tensor, known in self._quantized.items():
            widest = max(known.values(), key=lambda made: made.scale)
            users = [user for made in known.values() for user in made.users]
            if self.view.producer(tensor) is not None and any(user.kind.passes_int8_on for user in users):
                self.edit.take_over(tensor, widest.quantized, widest.dequantized)

    def _quantize_output(self, item: Found, scheme: Scheme, tensor: str) -> None:
        """In the range that the next op uses, if it quantizes the tensor; else in its own."""
        if self._runtime.fuses_activations and feeds_activation(self.view, tensor):
            return
        name = item.op.name + OUTPUT
        if tensor in self._quantized:
            next(iter(self._quantized[tensor].values())).users.append(item)
        elif name in self._ranges and self._ranges[name].finite:
            factors, chosen = self.smoothing.factors.get(item.op.name), self.range(name, scheme)
            self.quantized(tensor, *output_range(self._ranges, item.op.name, factors, chosen), item)
