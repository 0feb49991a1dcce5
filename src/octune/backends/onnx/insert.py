"""From a plan and known ranges to a graph with Q/DQ nodes, in about the time it takes to write the graph down.

    model = quantized_graph(view, found, plan, ranges, store, smoother, ORT)

Where nodes go follows what runtimes fuse into int8 kernels:
- One Q/DQ pair for all readers of a tensor. The second operand of a product of two activations is signed, as kernels want weights to be.
- ONNX Runtime runs a convolution in int8 only if its output is quantized as well. Readers of that tensor then all read the quantized one,
  so that int8 flows from layer to layer, through pooling and residual additions.
- OpenVINO wants activations around zero signed, without a zero point, and fuses what follows a convolution by itself.
- Operands of attention are quantized before they are reshaped and transposed: less to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from onnx import NodeProto, TensorProto, helper

from octune.backends.onnx.discover import OUTPUT, B, Found
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View, attribute
from octune.backends.onnx.smooth import Group, Smoother, output_range
from octune.backends.onnx.weights import Packed, WeightStore, by_output, per_input
from octune.calibration import Ranges, affine_uint8, choose_range
from octune.errors import PlanError
from octune.plan import Plan, Scheme
from octune.repair import BIAS, SMOOTH, bias_correction

__all__ = ["Dialect", "OPENVINO", "ORT", "quantized_graph", "site_of"]

MOVES = {"Reshape", "Transpose", "Squeeze", "Unsqueeze"}
# Below this share of the other side, the negative side of a range is worth a zero point even to OpenVINO.
LOPSIDED = 0.3
LARGEST_BIAS = 2.0**30


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a runtime wants its Q/DQ nodes."""

    signed: bool
    quantized_outputs: bool


ORT = Dialect(signed=False, quantized_outputs=True)
OPENVINO = Dialect(signed=True, quantized_outputs=False)


@dataclass(frozen=True, slots=True)
class Site:
    """A quantized activation: where it is, in which numbers, and which ops read it."""

    quantized: str
    dequantized: str
    scale: float
    readers: list[Found]


def site_of(view: View, found: Found, slot: int) -> str:
    """The tensor to quantize for an op's input: the input itself, or what it was before it was only moved."""
    tensor = str(found.node.input[slot])
    moves = MOVES if found.op.kind == "attention" else {"MaxPool"} if found.is_conv else set[str]()
    index = view.producer(tensor)
    while index is not None and view.nodes[index].op_type in moves and view.only_reader(tensor) is not None:
        tensor = str(view.nodes[index].input[0])
        index = view.producer(tensor)
    return tensor


def quantized_graph(
    view: View, found: Sequence[Found], plan: Plan, ranges: Ranges, store: WeightStore, smoother: Smoother, dialect: Dialect
) -> Model:
    """The graph under a plan. Ops that the plan does not name stay as they are."""
    return _Insertion(view, found, plan, ranges, store, smoother, dialect).model()


class _Insertion:
    def __init__(
        self, view: View, found: Sequence[Found], plan: Plan, ranges: Ranges, store: WeightStore, smoother: Smoother, dialect: Dialect
    ) -> None:
        self.view, self.ranges, self.store, self.dialect = view, ranges, store, dialect
        self.edit = Edit(view)
        self.planned = [(item, plan[item.op.name]) for item in found if not plan.get(item.op.name, Scheme.fp32()).is_float]
        self.sites: dict[str, dict[tuple[float, float, bool], Site]] = {}
        self.inputs: dict[str, Group] = {}  # by op: it reads a smoothed tensor
        self.factors: dict[str, Array] = {}  # by op: what its output channels are multiplied by
        self.moved: dict[tuple[int, int], Array] = {}  # constants that were multiplied, by node and slot
        self.folded: set[str] = set()  # tensors that are smoothed where they are made
        self.multiplied: dict[str, str] = {}  # tensor -> the same, smoothed by a node of its own
        self._smooth(smoother)
        self._rest = [item for item in found if item.op.name in self.factors and plan.get(item.op.name, Scheme.fp32()).is_float]

    def model(self) -> Model:
        for item, scheme in self.planned:
            if item.op.kind == "attention":
                self._attention(item, scheme)
            elif item.op.kind == "embedding":
                self._embedding(item, scheme)
            elif scheme.mode == "dynamic":
                self._dynamic(item, scheme)
            elif item.is_conv:
                self._conv(item, scheme)
            else:
                self._dense(item, scheme)
        for item in self._rest:
            self._scaled_float(item)
        for (index, slot), value in self.moved.items():
            node = self.edit.node(index)
            node.input[slot] = self.edit.tensor(f"{node.input[slot]}/scaled", value)
        self._flow()
        return self.edit.finish()

    # -- smoothing ------------------------------------------------------------------------------------------------

    def _smooth(self, smoother: Smoother) -> None:
        wanted: dict[str, list[Found]] = {}
        groups: dict[str, Group] = {}
        for item, scheme in self.planned:
            group = smoother.group(item, self.ranges) if SMOOTH in scheme.repairs else None
            if group is not None:
                self.inputs[item.op.name] = groups[group.tensor] = group
                wanted.setdefault(group.tensor, []).append(item)
        for tensor, members in wanted.items():
            group = groups[tensor]
            if group.fold is not None and len(members) == len(group.members):
                self._fold(group)

    def _fold(self, group: Group) -> None:
        fold = group.fold
        if fold is None:
            return
        self.folded.add(group.tensor)
        if fold.target is not None:
            self.factors[fold.target.op.name] = group.factors
        for index, slot, axis in fold.constants:
            value = self.view.constant(self.view.nodes[index].input[slot])
            if value is None:
                raise PlanError(f"the constant {slot} of {self.view.nodes[index].name!r} is gone")
            factors = group.factors if value.ndim == 1 or axis != 1 else group.factors.reshape(-1, 1, 1)
            self.moved[index, slot] = value * factors

    def _smoothed_input(self, item: Found) -> tuple[str, Array | None]:
        """The tensor that an op reads, and what it was multiplied by."""
        group = self.inputs.get(item.op.name)
        if group is None:
            return item.x, None
        multiplier = group.smoothing.multiplier
        if group.tensor in self.folded:
            return item.x, multiplier
        if group.tensor not in self.multiplied:
            shaped = multiplier if not item.is_conv else multiplier.reshape(1, -1, *[1] * (len(item.weight.shape) - 2))  # type: ignore[union-attr]
            factor = self.edit.tensor(f"{item.x}/smoothing", shaped)
            self.multiplied[group.tensor] = self.edit.after(item.x, "Mul", [item.x, factor], self.edit.name(f"{item.x}/smoothed"))
        return self.multiplied[group.tensor], multiplier

    def _input_range(self, item: Found, scheme: Scheme) -> tuple[float, float]:
        group = self.inputs.get(item.op.name)
        if group is not None:
            return group.smoothing.low, group.smoothing.high
        return self._range(item.op.name, scheme)

    def _range(self, name: str, scheme: Scheme) -> tuple[float, float]:
        if name not in self.ranges:
            raise PlanError(f"The plan asks for {scheme} at {name!r}, but calibration never saw its input. Give calibration data.")
        return choose_range(self.ranges[name], scheme.range_method or "minmax")

    # -- activations ----------------------------------------------------------------------------------------------

    def _site(self, tensor: str, low: float, high: float, reader: Found, *, weight_like: bool = False) -> Site:
        """The Q/DQ pair of a tensor in a range; made once for all readers that want the same."""
        low, high = min(low, 0.0), max(high, 0.0)
        signed = weight_like or (self.dialect.signed and -low > LOPSIDED * high)
        known = self.sites.setdefault(tensor, {})
        key = (low, high, signed)
        if key not in known:
            known[key] = self._pair(tensor, low, high, signed)
        known[key].readers.append(reader)
        return known[key]

    def _pair(self, tensor: str, low: float, high: float, signed: bool) -> Site:
        edit = self.edit
        zero: Array
        if signed:
            scale = max(-low, high) / self.store.reach or 1.0
            zero = np.int8(0)  # type: ignore[assignment]
        else:
            scale, point = affine_uint8(low, high)
            zero = np.uint8(point)  # type: ignore[assignment]
        parameters = [edit.tensor(f"{tensor}/scale", np.float32(scale)), edit.tensor(f"{tensor}/zero", zero)]
        quantized = edit.after(tensor, "QuantizeLinear", [tensor, *parameters], edit.name(f"{tensor}/quantized"))
        dequantized = edit.after(tensor, "DequantizeLinear", [quantized, *parameters], edit.name(f"{tensor}/dequantized"))
        return Site(quantized, dequantized, scale, [])

    def _rewire(self, item: Found, slot: int, tensor: str, replacement: str) -> None:
        """Let an op read ``replacement`` where ``tensor``, or what it was moved from, came in."""
        index, at = item.index, slot
        while self.view.nodes[index].input[at] != tensor:
            before = self.view.producer(self.view.nodes[index].input[at])
            if before is None:
                raise PlanError(f"{tensor!r} does not lead to {item.op.name!r}")
            index, at = before, 0
        self.edit.node(index).input[at] = replacement

    # -- kinds of ops ---------------------------------------------------------------------------------------------

    def _attention(self, item: Found, scheme: Scheme) -> None:
        for slot, suffix in ((0, ""), (1, B)):
            tensor = site_of(self.view, item, slot)
            low, high = self._range(item.op.name + suffix, scheme)
            site = self._site(tensor, low, high, item, weight_like=slot == 1)
            self._rewire(item, slot, tensor, site.dequantized)

    def _packed(self, item: Found, scheme: Scheme, multiplier: Array | None) -> tuple[Packed, Array]:
        """int8 weights, with the output's factors in their scales; and what bias correction adds to the bias."""
        packed = self.store.get(item, scheme.granularity, multiplier)
        correction = np.zeros(packed.values.shape[0], np.float32)
        if BIAS in scheme.repairs and item.op.name in self.ranges and item.weight is not None:
            stats, weight = self.ranges[item.op.name], item.weight
            if multiplier is not None:
                weight = weight / per_input(multiplier, weight, item.groups)
                stats = replace(stats, channel_mean=stats.channel_mean * multiplier if stats.channel_mean.size else stats.channel_mean)
            correction = bias_correction(stats, weight, packed.dequantized(), item.groups)
        factors = self.factors.get(item.op.name)
        if factors is not None:
            packed, correction = Packed(packed.values, np.broadcast_to(packed.scales, factors.shape) * factors), correction * factors
        return packed, correction

    def _weight(self, item: Found, packed: Packed, layout: str) -> tuple[str, list[str]]:
        """Store int8 weights; returns their name and those of scale and zero point."""
        values = packed.values
        if layout == "inputs first":
            values = np.asarray(values.swapaxes(0, 1), order="C")
        whole = packed.scales.size == 1
        scales = packed.scales.reshape(()) if whole else packed.scales
        name = item.op.name
        return self.edit.tensor(f"{name}/weight_int8", values), [
            self.edit.tensor(f"{name}/weight_scale", np.asarray(scales, np.float32, order="C")),
            self.edit.tensor(f"{name}/weight_zero", np.zeros(scales.shape, np.int8)),
        ]

    def _dense(self, item: Found, scheme: Scheme) -> None:
        tensor, multiplier = self._smoothed_input(item)
        packed, correction = self._packed(item, scheme, multiplier)
        site = self._site(tensor, *self._input_range(item, scheme), item)
        added = self._following_bias(item)
        bias = self._bias(item, correction)
        as_gemm = self.view.rank(item.x) == 2 and (bias is not None or added is not None)
        if as_gemm and added is not None:
            extra = self.moved.pop(added, self.view.constant(self.view.nodes[added[0]].input[added[1]]))
            bias = extra if bias is None else extra + bias
        if as_gemm and bias is not None:
            packed = self._fitting(packed, bias, site.scale)
        values, parameters = self._weight(item, packed, "inputs first")
        weight = self.edit.start("DequantizeLinear", [values, *parameters], self.edit.name(f"{item.op.name}/weight"), axis=1)
        if as_gemm and bias is not None:
            # Of a matrix, a product and a sum are fused into a Gemm, which is int8 only if its bias is.
            last = item.output if added is None else str(self.view.nodes[added[0]].output[0])
            steps = self._int32_bias(item, bias, np.float32(site.scale) * packed.scales)
            nodes = [helper.make_node("Gemm", [site.dequantized, weight, steps], [last], name=item.op.name)]
            if added is not None:
                self.edit.replace(added[0], [])
        else:
            product, tail = self._with_bias(item, correction)
            nodes = [helper.make_node("MatMul", [site.dequantized, weight], [product], name=item.op.name), *tail]
        self.edit.replace(item.index, nodes)

    def _following_bias(self, item: Found) -> tuple[int, int] | None:
        """The node that adds a constant to every output of a bare product, and the slot of that constant."""
        index = self.view.only_reader(item.output) if item.op.kind == "matmul" and item.weight is not None else None
        node = None if index is None else self.view.nodes[index]
        if node is None or index is None or node.op_type != "Add" or item.weight is None:
            return None
        for slot, name in enumerate(node.input):
            value = self.view.constant(name)
            if value is not None and value.dtype == np.float32 and value.shape == item.weight.shape[:1]:
                return index, slot
        return None

    def _with_bias(self, item: Found, correction: Array) -> tuple[str, list[NodeProto]]:
        """Where the bare product goes, and the nodes that add what is still to be added."""
        bias = correction
        factors = self.factors.get(item.op.name)
        if item.bias is not None:
            bias = bias + (item.bias if factors is None else item.bias * factors)
        if not bias.any() and item.bias is None:
            return item.output, []
        added = self._following_bias(item)
        value = None if added is None else self.moved.get(added, self.view.constant(self.view.nodes[added[0]].input[added[1]]))
        if added is not None and value is not None:  # a correction goes into the bias that is added anyway
            self.moved[added] = value + bias
            return item.output, []
        product = self.edit.name(f"{item.output}/product")
        name = self.edit.tensor(f"{item.op.name}/bias", bias.astype(np.float32))
        return product, [helper.make_node("Add", [product, name], [item.output], name=f"{item.op.name}/Add")]

    def _dynamic(self, item: Found, scheme: Scheme) -> None:
        """The input's range is found as it comes: DynamicQuantizeLinear, MatMulInteger, and back to float."""
        edit, name = self.edit, item.op.name
        packed, correction = self._packed(item, scheme, None)
        values, (scales, _) = self._weight(item, packed, "inputs first")
        parts = self._dynamic_input(item.x)
        sums, wide, factor = (edit.name(f"{name}/{part}") for part in ("sums", "wide", "factor"))
        product, tail = self._with_bias(item, correction)
        nodes = [
            helper.make_node("MatMulInteger", [parts[0], values, parts[2]], [sums], name=name),
            helper.make_node("Cast", [sums], [wide], name=f"{name}/Cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", [parts[1], scales], [factor], name=f"{name}/Scale"),
            helper.make_node("Mul", [wide, factor], [product], name=f"{name}/Mul"),
        ]
        edit.replace(item.index, [*nodes, *tail])

    @cached_property
    def _dynamic_inputs(self) -> dict[str, tuple[str, str, str]]:
        return {}

    def _dynamic_input(self, tensor: str) -> tuple[str, str, str]:
        if tensor not in self._dynamic_inputs:
            names = tuple(self.edit.name(f"{tensor}/dynamic_{part}") for part in ("quantized", "scale", "zero"))
            self.edit.after(tensor, "DynamicQuantizeLinear", [tensor], *names)
            self._dynamic_inputs[tensor] = names  # type: ignore[assignment]
        return self._dynamic_inputs[tensor]

    def _conv(self, item: Found, scheme: Scheme) -> None:
        tensor, multiplier = self._smoothed_input(item)
        packed, correction = self._packed(item, scheme, multiplier)
        source = site_of(self.view, item, 0) if tensor == item.x and self._may_move(item) else tensor
        site = self._site(source, *self._input_range(item, scheme), item)
        if source == tensor:
            self.edit.node(item.index).input[0] = site.dequantized
        else:
            self._rewire(item, 0, source, site.dequantized)
        transposed = item.op.kind == "conv_transpose"
        bias = self._bias(item, correction)
        if bias is not None:
            packed = self._fitting(packed, bias, site.scale)
        values, parameters = self._weight(item, packed, "inputs first" if transposed else "outputs first")
        weight = self.edit.start(
            "DequantizeLinear", [values, *parameters], self.edit.name(f"{item.op.name}/weight"), axis=1 if transposed else 0
        )
        node = self.edit.node(item.index)
        node.input[1] = weight
        if bias is not None:
            del node.input[2:]
            node.input.append(self._int32_bias(item, bias, np.float32(site.scale) * packed.scales))

    def _may_move(self, item: Found) -> bool:
        return item.op.name not in self.inputs or item.x in self.folded

    @staticmethod
    def _fitting(packed: Packed, bias: Array, step: float) -> Packed:
        """Weights coarse enough for the bias: it is counted in steps of input times weight, and must not overflow 32 bits."""
        least = (np.abs(bias) / (LARGEST_BIAS * step)).astype(np.float32)
        if not (least > packed.scales).any():
            return packed
        scales = np.maximum(np.broadcast_to(packed.scales, least.shape), least)
        return Packed(np.rint(packed.values * by_output(packed.scales / scales, packed.values.ndim)).astype(np.int8), scales)

    def _bias(self, item: Found, correction: Array) -> Array | None:
        factors = self.factors.get(item.op.name)
        bias = item.bias if item.bias is None or factors is None else item.bias * factors
        if bias is None:
            return correction if correction.any() else None
        return np.asarray(bias + correction, np.float32)

    def _int32_bias(self, item: Found, bias: Array, steps: Array) -> str:
        whole = steps.size == 1
        counts = np.clip(np.rint(bias / steps.astype(np.float64)), -(2.0**31) + 1, 2.0**31 - 1).astype(np.int32)
        inputs = [
            self.edit.tensor(f"{item.op.name}/bias_int32", counts),
            self.edit.tensor(f"{item.op.name}/bias_scale", steps.reshape(()) if whole else steps),
            self.edit.tensor(f"{item.op.name}/bias_zero", np.zeros(() if whole else steps.shape, np.int32)),
        ]
        return self.edit.start("DequantizeLinear", inputs, self.edit.name(f"{item.op.name}/bias"), axis=0)

    def _embedding(self, item: Found, scheme: Scheme) -> None:
        """Rows are read as int8, and scaled after that."""
        edit, name = self.edit, item.op.name
        packed = self.store.get(item, scheme.granularity)
        table = edit.tensor(f"{name}/weight_int8", packed.values)
        rows, wide = edit.name(f"{name}/rows"), edit.name(f"{name}/wide")
        nodes = [
            helper.make_node("Gather", [table, item.x], [rows], name=name, axis=0),
            helper.make_node("Cast", [rows], [wide], name=f"{name}/Cast", to=TensorProto.FLOAT),
        ]
        if packed.scales.size == 1:
            factor = edit.tensor(f"{name}/weight_scale", packed.scales.reshape(()))
        else:
            scales, factor = edit.tensor(f"{name}/weight_scale", packed.scales.reshape(-1, 1)), edit.name(f"{name}/factor")
            nodes.append(helper.make_node("Gather", [scales, item.x], [factor], name=f"{name}/Scale", axis=0))
        edit.replace(item.index, [*nodes, helper.make_node("Mul", [wide, factor], [item.output], name=f"{name}/Mul")])

    def _scaled_float(self, item: Found) -> None:
        """An op that stays in float, but whose output channels are multiplied for an op that reads them."""
        factors, weight = self.factors[item.op.name], item.weight
        if weight is None:
            return
        node = self.edit.node(item.index)
        wide = weight * by_output(factors, weight.ndim)
        if item.op.kind == "matmul" or item.op.kind == "conv_transpose" or (item.op.kind == "gemm" and not attribute(node, "transB", 0)):
            wide = wide.swapaxes(0, 1)
        if item.op.kind == "gemm":  # alpha and beta are in the arrays already
            kept = [a for a in node.attribute if a.name not in ("alpha", "beta")]
            del node.attribute[:]
            node.attribute.extend(kept)
        node.input[1] = self.edit.tensor(f"{item.op.name}/weight_scaled", np.asarray(wide, order="C"))
        if item.bias is not None:
            node.input[2] = self.edit.tensor(f"{item.op.name}/bias_scaled", item.bias * factors)

    # -- int8 from layer to layer ---------------------------------------------------------------------------------

    def _flow(self) -> None:
        if self.dialect.quantized_outputs:
            for item, scheme in self.planned:
                if item.op.kind == "conv":
                    self._quantized_output(item, scheme)
        for tensor, sites in self.sites.items():
            widest = max(sites.values(), key=lambda site: site.scale)
            readers = [reader for site in sites.values() for reader in site.readers]
            if self.view.producer(tensor) is not None and any(reader.is_conv for reader in readers):
                self.edit.take_over(tensor, widest.quantized, widest.dequantized)

    def _quantized_output(self, item: Found, scheme: Scheme) -> None:
        tensor = item.output
        reader = self.view.only_reader(tensor)
        if reader is not None and self.view.nodes[reader].op_type in ("Relu", "Clip"):
            tensor = self.view.nodes[reader].output[0]
        name = item.op.name + OUTPUT
        if tensor in self.sites:
            next(iter(self.sites[tensor].values())).readers.append(item)
        elif name in self.ranges and self.ranges[name].finite:
            chosen = choose_range(self.ranges[name], scheme.range_method or "minmax")
            self._site(tensor, *output_range(self.ranges, item.op.name, self.factors.get(item.op.name), chosen), item)
