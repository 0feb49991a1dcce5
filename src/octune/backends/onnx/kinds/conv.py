"""Convolutions in any number of dimensions, and transposed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from octune.backends.onnx.graph import QDQ_OPSET, Array, Model, View, attribute
from octune.backends.onnx.kinds.base import Found
from octune.backends.onnx.kinds.weighted import Weighted, stored_bias, with_weight
from octune.plan import Scheme
from octune.repair import static_schemes

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors
    from octune.backends.onnx.insert import Insertion

__all__ = ["CONV", "CONV_TRANSPOSE"]


class Convolution(Weighted):
    """What both kinds have in common."""

    channel_axis = 1
    zero_points = passes_int8_on = True
    moves = frozenset({"MaxPool"})

    def schemes(self) -> tuple[Scheme, ...]:
        # Dynamic ones are slower than fp32 on every CPU runtime.
        return (*static_schemes(), Scheme.fp32())

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        weight = view.constant(node.input[1])
        bias, computed = stored_bias(view, node)
        if weight is None:
            return self.left_in_float(index, node, "its weight is computed, not stored")
        if computed:
            return self.left_in_float(index, node, "its bias is computed, not stored")
        groups = int(attribute(node, "group", 1))
        if self.inputs_first:
            if groups > 1:
                return self.left_in_float(
                    index, node, f"it has {groups} groups, for which there is no int8 kernel"
                )
            weight = weight.swapaxes(0, 1)
        attributes = " ".join(f"{item.name}={attribute(node, item.name)}" for item in node.attribute)
        signature = f"{self.node_type}{list(weight.shape)} {attributes}"
        return with_weight(self, index, node, weight, groups, bias, signature)

    def product(self, at: OpErrors, x: Array, weight: Array) -> Array:
        weight = weight.swapaxes(0, 1) if self.inputs_first else weight
        running = at.context.session(at.found.op.signature, lambda: _bare(at.found))
        return np.asarray(running.run(None, {"x": x, "w": np.asarray(weight, order="C")})[0])

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        x, multiplier = insertion.quantized_input(found, scheme)
        made, bias = insertion.constants.int8(found, scheme, multiplier)
        made = made if bias is None else insertion.constants.fitting(made, bias, x.scale)
        node = insertion.edit.node(found.index)
        node.input[1] = insertion.constants.weight(found, made)
        if bias is not None:
            del node.input[2:]
            node.input.append(insertion.constants.bias(found, bias, np.float32(x.scale) * made.scales))


class Conv(Convolution):
    """An ordinary convolution. Runtimes have it in int8 only if its output is int8, too."""

    name, node_type = "conv", "Conv"

    def quantized_output(self, view: View, found: Found) -> str | None:
        """Its output, or that of the activation function that runtimes fuse into it."""
        reader = view.only_reader(found.output)
        if reader is not None and view.nodes[reader].op_type in ("Relu", "Clip"):
            return str(view.nodes[reader].output[0])
        return found.output


class ConvTranspose(Convolution):
    """A transposed convolution; its weights are stored with the inputs first."""

    name, node_type = "conv_transpose", "ConvTranspose"
    inputs_first = True


def _bare(found: Found) -> Model:
    """A model of one convolution, with input and weight as inputs."""
    node = helper.make_node(found.kind.node_type, ["x", "w"], ["y"])
    node.attribute.extend(found.node.attribute)
    rank = 0 if found.weight is None else found.weight.ndim
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in ("x", "w")]
    graph = helper.make_graph([node], "bare", inputs, [ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", QDQ_OPSET)]
    return Model(helper.make_model(graph, opset_imports=opsets, ir_version=8))


CONV, CONV_TRANSPOSE = Conv(), ConvTranspose()
