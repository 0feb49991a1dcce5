"""From a plan and known ranges to a graph with Q/DQ nodes, in about the time it takes to write the graph
down.

    model = quantized_graph(view, found, plan, weights, groups, ONNX_RUNTIME)

Every kind of op writes its own nodes, with what an :class:`Insertion` offers to all of them. Where nodes go
follows what runtimes fuse into int8 kernels:
- One Q/DQ pair for all readers of a tensor.
- ONNX Runtime runs a convolution in int8 only if its output is quantized as well, and OpenVINO is faster with
  it. Readers of that tensor then all read the quantized one, so that int8 flows from layer to layer, through
  pooling and residual additions.
- A sigmoid between int8 tensors that is multiplied with one of them (SiLU, squeeze and excitation) is int8 as
  well: ONNX Runtime has kernels for both.
- OpenVINO fuses any activation function into a convolution, so there is nothing to quantize between the two.
- OpenVINO wants activations of matrix products signed, without a zero point: it has no int8 attention with
  one. Those of convolutions have one: some of its convolutions are wrong for signed input.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from octune.backends.onnx.activation import feeds_activation
from octune.backends.onnx.constant_writer import ConstantWriter
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.runtimes import Runtime
from octune.backends.onnx.smoothing import SmoothingEdit, SmoothingGroups, output_range
from octune.backends.onnx.weights import Int8Weights
from octune.backends.terms import OUTPUT
from octune.calibration import choose_range
from octune.errors import PlanError
from octune.int8 import LARGEST, Grid
from octune.plan import Plan, Scheme

__all__ = ["Insertion", "QuantizedTensor", "quantized_graph"]

# Below this share of the other side, the negative side of a range is worth a zero point even to OpenVINO.
LOPSIDED = 0.3
MIDDLE = 128  # of uint8
AXES_ARE_INPUTS = 18  # the first opset whose reductions are told their axes that way


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
        self._by_row: dict[str, tuple[str, ...]] = {}

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

    def quantized_by_row(self, tensor: str) -> tuple[str, ...]:
        """The same with a range for each row, around zero: the names of its values, of the steps of its rows
        and of the zero point, which is the middle for all.
        """
        if tensor not in self._by_row:
            edit = self.edit
            made = {
                part: edit.name(f"{tensor}/row_{part}")
                for part in ("size", "peak", "step", "steps", "quantized")
            }
            zero = edit.tensor(f"{tensor}/row_zero", np.uint8(MIDDLE))
            one = edit.tensor(f"{tensor}/row_one", np.float32(1))
            share = edit.tensor(f"{tensor}/row_share", np.float32(1 / LARGEST))
            tiny = edit.tensor(f"{tensor}/row_tiny", np.finfo(np.float32).tiny)
            edit.after(tensor, "Abs", [tensor], made["size"])
            self._largest_of_rows(tensor, made["size"], made["peak"])
            edit.after(tensor, "Mul", [made["peak"], share], made["step"])
            edit.after(tensor, "Max", [made["step"], tiny], made["steps"])
            ratio = edit.after(tensor, "Div", [tensor, made["steps"]], edit.name(f"{tensor}/row_ratio"))
            edit.after(tensor, "QuantizeLinear", [ratio, one, zero], made["quantized"])
            self._by_row[tensor] = made["quantized"], made["steps"], zero
        return self._by_row[tensor]

    def _largest_of_rows(self, tensor: str, x: str, output: str) -> None:
        opsets = self.view.model.proto.opset_import
        if next(item.version for item in opsets if item.domain in ("", "ai.onnx")) < AXES_ARE_INPUTS:
            self.edit.after(tensor, "ReduceMax", [x], output, axes=[-1], keepdims=1)
            return
        axis = self.edit.tensor(f"{tensor}/row_axis", np.array([-1]))
        self.edit.after(tensor, "ReduceMax", [x, axis], output, keepdims=1)

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
        flowing: set[str] = set()
        for tensor, known in self._quantized.items():
            widest = max(known.values(), key=lambda made: made.scale)
            users = [user for made in known.values() for user in made.users]
            if self.view.producer(tensor) is not None and any(user.kind.passes_int8_on for user in users):
                self.edit.take_over(tensor, widest.quantized, widest.dequantized)
                flowing.add(tensor)
        if not self._runtime.fuses_activations:
            self._quantize_gates(flowing)

    def _quantize_gates(self, flowing: Set[str]) -> None:
        """``x * sigmoid(y)`` between int8 tensors: with the gate in int8, both nodes have int8 kernels."""
        for node in self.view.nodes:
            if node.op_type != "Sigmoid" or node.input[0] not in flowing:
                continue
            gate = str(node.output[0])
            reader = self.view.only_reader(gate)
            product = None if reader is None else self.view.nodes[reader]
            if product is None or product.op_type != "Mul" or product.output[0] not in flowing:
                continue
            if all(name == gate or name in flowing for name in product.input):
                made = self._pair(gate, Grid.affine(0.0, 1.0))
                self.edit.take_over(gate, made.quantized, made.dequantized)

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
