"""From a plan and known ranges to a graph with Q/DQ nodes, in about the time it takes to write the graph
down.

    model = quantized_graph(view, found, plan, ranges, store, smoother, ONNX_RUNTIME)

Where nodes go follows what runtimes fuse into int8 kernels:
- One Q/DQ pair for all readers of a tensor. The second operand of a product of two activations is signed, as
  kernels want weights to be.
- ONNX Runtime runs a convolution in int8 only if its output is quantized as well, and OpenVINO is faster with
  it. Readers of that tensor then all read the quantized one, so that int8 flows from layer to layer, through
  pooling and residual additions.
- OpenVINO wants activations around zero signed, without a zero point: it has no int8 attention with one.
- Operands of attention are quantized before they are reshaped and transposed: less to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, helper

from octune.backends.base import OUTPUT, B
from octune.backends.onnx.discover import Found
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View, attribute
from octune.backends.onnx.runtimes import Runtime
from octune.backends.onnx.smooth import Smoother, output_range
from octune.backends.onnx.smoothed import Smoothed
from octune.backends.onnx.stored import Stored
from octune.backends.onnx.weights import WeightStore
from octune.calibration import Ranges, choose_range
from octune.errors import PlanError
from octune.int8 import LARGEST, Grid, Int8Weight
from octune.plan import Plan, Scheme

__all__ = ["quantized_graph", "site_of"]

MOVES = {"Reshape", "Transpose", "Squeeze", "Unsqueeze"}
# Below this share of the other side, the negative side of a range is worth a zero point even to OpenVINO.
LOPSIDED = 0.3


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
    view: View,
    found: Sequence[Found],
    plan: Plan,
    ranges: Ranges,
    store: WeightStore,
    smoother: Smoother,
    runtime: Runtime,
) -> Model:
    """The graph under a plan. Ops that the plan does not name stay as they are."""
    return _Insertion(view, found, plan, ranges, store, smoother, runtime).model()


class _Insertion:
    def __init__(
        self,
        view: View,
        found: Sequence[Found],
        plan: Plan,
        ranges: Ranges,
        store: WeightStore,
        smoother: Smoother,
        runtime: Runtime,
    ) -> None:
        self.view, self.ranges, self.store, self.runtime = view, ranges, store, runtime
        self.edit = Edit(view)
        self.planned = [
            (item, plan[item.op.name]) for item in found if not plan.get(item.op.name, Scheme.fp32()).is_float
        ]
        self.smoothed = Smoothed(self.edit, self.planned, ranges, smoother)
        self.stored = Stored(self.edit, store, ranges, self.smoothed.factors)
        self.sites: dict[str, dict[tuple[float, float, bool, bool], Site]] = {}
        self.dynamic: dict[str, tuple[str, ...]] = {}
        quantized = {item.op.name for item, _ in self.planned}
        self.floats = [
            item for item in found if item.op.name in self.smoothed.factors and item.op.name not in quantized
        ]

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
        for item in self.floats:
            self._scaled_float(item)
        self.smoothed.finish()
        self._flow()
        return self.edit.finish()

    def _range(self, name: str, scheme: Scheme) -> tuple[float, float]:
        if name not in self.ranges:
            raise PlanError(
                f"The plan asks for {scheme} at {name!r}, but calibration never saw its input. Give "
                "calibration data."
            )
        return choose_range(self.ranges[name], scheme.range_method or "minmax")

    # -- activations -----------------------------------------------------------------------------------------

    def _site(
        self, tensor: str, low: float, high: float, reader: Found, *, weight_like: bool = False
    ) -> Site:
        """The Q/DQ pair of a tensor in a range; made once for all readers that want the same."""
        low, high = min(low, 0.0), max(high, 0.0)
        signed = weight_like or (self.runtime.signed_activations and -low > LOPSIDED * high)
        known = self.sites.setdefault(tensor, {})
        key = (low, high, signed, weight_like)
        if key not in known:
            known[key] = self._pair(
                tensor, low, high, signed, self.store.largest_activation if weight_like else LARGEST
            )
        known[key].readers.append(reader)
        return known[key]

    def _pair(self, tensor: str, low: float, high: float, signed: bool, largest: int) -> Site:
        edit = self.edit
        grid = Grid.symmetric(max(-low, high), largest) if signed else Grid.affine(low, high)
        parameters = [
            edit.tensor(f"{tensor}/scale", np.asarray(grid.scale, np.float32)),
            edit.tensor(f"{tensor}/zero", np.asarray(grid.zero_point, np.int8 if signed else np.uint8)),
        ]
        quantized = edit.after(
            tensor, "QuantizeLinear", [tensor, *parameters], edit.name(f"{tensor}/quantized")
        )
        dequantized = edit.after(
            tensor, "DequantizeLinear", [quantized, *parameters], edit.name(f"{tensor}/dequantized")
        )
        return Site(quantized, dequantized, grid.scale, [])

    def _rewire(self, item: Found, slot: int, tensor: str, replacement: str) -> None:
        """Let an op read ``replacement`` where ``tensor``, or what it was moved from, came in."""
        index, at = item.index, slot
        while self.view.nodes[index].input[at] != tensor:
            before = self.view.producer(self.view.nodes[index].input[at])
            if before is None:
                raise PlanError(f"{tensor!r} does not lead to {item.op.name!r}")
            index, at = before, 0
        self.edit.node(index).input[at] = replacement

    # -- kinds of ops ----------------------------------------------------------------------------------------

    def _attention(self, item: Found, scheme: Scheme) -> None:
        for slot, suffix in ((0, ""), (1, B)):
            tensor = site_of(self.view, item, slot)
            low, high = self._range(item.op.name + suffix, scheme)
            site = self._site(tensor, low, high, item, weight_like=slot == 1)
            self._rewire(item, slot, tensor, site.dequantized)

    def _dense(self, item: Found, scheme: Scheme) -> None:
        tensor, multiplier = self.smoothed.input(item)
        site = self._site(tensor, *(self.smoothed.range(item) or self._range(item.op.name, scheme)), item)
        packed, bias = self.stored.packed(item, scheme, multiplier)
        if self.view.rank(item.x) == 2 and (gemm := self._gemm(item, site, packed, bias)) is not None:
            self.edit.replace(item.index, [gemm])
            return
        weight = self.stored.weight(item, packed, inputs_first=True)
        product, tail = self._with_bias(item, bias)
        self.edit.replace(
            item.index,
            [helper.make_node("MatMul", [site.dequantized, weight], [product], name=item.op.name), *tail],
        )

    def _gemm(self, item: Found, site: Site, packed: Int8Weight, bias: Array | None) -> NodeProto | None:
        """ONNX Runtime fuses product and sum of a matrix into a Gemm, which is int8 only if its bias is: so
        it is made one at once.
        """
        added, output = self._following_bias(item), item.output
        if added is not None:
            extra = self.smoothed.constant(*added)
            bias = extra if bias is None else extra + bias
        if bias is None:
            return None
        if added is not None:
            self.smoothed.moved.pop(added, None)
            self.edit.replace(added[0], [])
            output = str(self.view.nodes[added[0]].output[0])
        packed = self.stored.fitting(packed, bias, site.scale)
        weight = self.stored.weight(item, packed, inputs_first=True)
        steps = self.stored.bias(item, bias, np.float32(site.scale) * packed.scales)
        return helper.make_node("Gemm", [site.dequantized, weight, steps], [output], name=item.op.name)

    def _following_bias(self, item: Found) -> tuple[int, int] | None:
        """The node that adds a constant to every output of a bare product, and the slot of that constant."""
        index = self.view.only_reader(item.output) if item.op.kind == "matmul" else None
        if index is None or item.weight is None or self.view.nodes[index].op_type != "Add":
            return None
        for slot, name in enumerate(self.view.nodes[index].input):
            value = self.view.constant(name)
            if value is not None and value.dtype == np.float32 and value.shape == item.weight.shape[:1]:
                return index, slot
        return None

    def _with_bias(self, item: Found, bias: Array | None) -> tuple[str, list[NodeProto]]:
        """Where the bare product goes, and the nodes that add what is still to be added."""
        if bias is None:
            return item.output, []
        added = self._following_bias(item)
        if added is not None:  # a correction goes into the bias that is added anyway
            self.smoothed.moved[added] = self.smoothed.constant(*added) + bias
            return item.output, []
        product = self.edit.name(f"{item.output}/product")
        name = self.edit.tensor(f"{item.op.name}/bias", np.asarray(bias, np.float32))
        return product, [helper.make_node("Add", [product, name], [item.output], name=f"{item.op.name}/Add")]

    def _dynamic(self, item: Found, scheme: Scheme) -> None:
        """The input's range is found as it comes: DynamicQuantizeLinear, MatMulInteger, and back to float."""
        edit, name = self.edit, item.op.name
        packed, bias = self.stored.packed(item, scheme, None)
        values, scales, _ = self.stored.integers(item, packed, inputs_first=True)
        if item.x not in self.dynamic:
            self.dynamic[item.x] = tuple(
                edit.name(f"{item.x}/dynamic_{part}") for part in ("quantized", "scale", "zero")
            )
            edit.after(item.x, "DynamicQuantizeLinear", [item.x], *self.dynamic[item.x])
        quantized, step, zero = self.dynamic[item.x]
        sums, wide, factor = (edit.name(f"{name}/{part}") for part in ("sums", "wide", "factor"))
        product, tail = self._with_bias(item, bias)
        nodes = [
            helper.make_node("MatMulInteger", [quantized, values, zero], [sums], name=name),
            helper.make_node("Cast", [sums], [wide], name=f"{name}/Cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", [step, scales], [factor], name=f"{name}/Scale"),
            helper.make_node("Mul", [wide, factor], [product], name=f"{name}/Mul"),
        ]
        edit.replace(item.index, [*nodes, *tail])

    def _conv(self, item: Found, scheme: Scheme) -> None:
        tensor, multiplier = self.smoothed.input(item)
        source = site_of(self.view, item, 0) if tensor == item.x else tensor
        site = self._site(source, *(self.smoothed.range(item) or self._range(item.op.name, scheme)), item)
        if source == tensor:
            self.edit.node(item.index).input[0] = site.dequantized
        else:
            self._rewire(item, 0, source, site.dequantized)
        packed, bias = self.stored.packed(item, scheme, multiplier)
        packed = packed if bias is None else self.stored.fitting(packed, bias, site.scale)
        node = self.edit.node(item.index)
        node.input[1] = self.stored.weight(item, packed, inputs_first=item.op.kind == "conv_transpose")
        if bias is not None:
            del node.input[2:]
            node.input.append(self.stored.bias(item, bias, np.float32(site.scale) * packed.scales))

    def _embedding(self, item: Found, scheme: Scheme) -> None:
        """Rows are read as int8, and scaled after that."""
        edit, name = self.edit, item.op.name
        packed = self.store.get(item, scheme)
        table = edit.tensor(f"{name}/weight_int8", packed.values)
        rows, wide = edit.name(f"{name}/rows"), edit.name(f"{name}/wide")
        nodes = [
            helper.make_node("Gather", [table, item.x], [rows], name=name, axis=0),
            helper.make_node("Cast", [rows], [wide], name=f"{name}/Cast", to=TensorProto.FLOAT),
        ]
        if packed.scales.size == 1:
            factor = edit.tensor(f"{name}/weight_scale", packed.scales.reshape(()))
        else:
            scales, factor = (
                edit.tensor(f"{name}/weight_scale", packed.scales.reshape(-1, 1)),
                edit.name(f"{name}/factor"),
            )
            nodes.append(helper.make_node("Gather", [scales, item.x], [factor], name=f"{name}/Scale", axis=0))
        edit.replace(
            item.index, [*nodes, helper.make_node("Mul", [wide, factor], [item.output], name=f"{name}/Mul")]
        )

    def _scaled_float(self, item: Found) -> None:
        """An op that stays in float, but whose output channels are multiplied for an op that reads them."""
        node = self.edit.node(item.index)
        straight = item.op.kind == "conv" or (item.op.kind == "gemm" and attribute(node, "transB", 0))
        node.input[1], bias = self.stored.scaled_float(item, inputs_first=not straight)
        if bias is not None:
            node.input[2] = bias
        if item.op.kind == "gemm":  # alpha and beta are in the arrays already
            kept = [a for a in node.attribute if a.name not in ("alpha", "beta")]
            del node.attribute[:]
            node.attribute.extend(kept)

    # -- int8 from layer to layer ----------------------------------------------------------------------------

    def _flow(self) -> None:
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
            self._site(
                tensor,
                *output_range(self.ranges, item.op.name, self.smoothed.factors.get(item.op.name), chosen),
                item,
            )
