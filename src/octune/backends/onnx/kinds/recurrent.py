"""Recurrent layers: what LSTM and GRU have in common, and the LSTM.

ONNX Runtime has a whole LSTM in int8, in which input and state are quantized at every step in the range that
they have there. OpenVINO does not have that op, so in its graph the layer stays as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from octune.backends.onnx.graph import QDQ_OPSET, Array, Model, View, attribute
from octune.backends.onnx.kinds.base import Found, Kind
from octune.plan import Op, Scheme

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors
    from octune.backends.onnx.insert import Insertion
    from octune.backends.onnx.weights import Int8Weights

__all__ = ["LSTM", "OWN_DOMAIN", "SEQUENCE_LENGTHS", "Recurrent", "given"]

W, R, BIAS, SEQUENCE_LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = 1, 2, 3, 4, 5, 6, 7  # input slots
OWN_DOMAIN = "com.microsoft"


class Recurrent(Kind):
    """A layer of one or two directions. Its weights are (directions, gates, inputs) for the input and for the
    state.
    """

    def schemes(self) -> tuple[Scheme, ...]:
        return (Scheme.int8("dynamic"), Scheme.fp32())

    @abstractmethod
    def unlike(self, node: NodeProto) -> str:
        """What the node does that its int8 form does not; empty if there is nothing."""

    @abstractmethod
    def stored(self, found: Found, int8: Mapping[str, Array]) -> dict[str, Array]:
        """The tensors of its int8 form, from the values and scales of both weights: ``input_int8`` and
        ``state_int8`` are (directions, inputs, gates).
        """

    @abstractmethod
    def int8_nodes(self, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
        """The int8 form of a node, which reads the stored tensors by these names."""

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        weights = [view.constant(node.input[slot]) for slot in (W, R)]
        bias = view.constant(node.input[BIAS]) if given(node, BIAS) else None
        w, r = weights
        if w is None or r is None or (bias is None and given(node, BIAS)):
            return self.left_in_float(index, node, "its weights are computed, not stored")
        if not all(one.dtype == np.float32 and np.isfinite(one).all() for one in (w, r)):
            return self.left_in_float(index, node, "its weights are not finite float32 numbers")
        if why := self.unlike(node):
            return self.left_in_float(index, node, f"it has {why}, for which there is no int8 kernel")
        signature = " ".join(
            [f"{self.node_type}{list(w.shape)}"]
            + [f"{item.name}={attribute(node, item.name)}" for item in node.attribute]
        )
        op = Op(node.name, self.name, self.schemes(), int(w.size + r.size), signature)
        # Only (outputs, inputs) can be shared out to repairs, so the weights are kept in `extra`.
        return Found(self, op, index, node, bias=bias, extra=(w, r))

    def constants(self, found: Found) -> list[Array]:
        return [*found.extra, *([] if found.bias is None else [found.bias])]

    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        """The kernel itself against fp32, both from an empty state."""
        key, weights = at.found.op.name, at.context.weights
        exact = at.context.session(f"{key} fp32", lambda: _float(at.found))
        int8 = at.context.session(f"{key} {scheme}", lambda: self._alone(at.found, scheme, weights))
        x = {"x": np.asarray(at.inputs[0], np.float32)}
        return np.asarray(int8.run(None, x)[0] - exact.run(None, x)[0], np.float32)

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        if not insertion.own_ops:
            return
        made = self.stored(found, _quantized(found, scheme, insertion.weights))
        names = {part: insertion.edit.tensor(f"{found.op.name}/{part}", made[part]) for part in made}
        node = insertion.edit.node(found.index)
        insertion.edit.replace(found.index, self.int8_nodes(node, names))

    def _alone(self, found: Found, scheme: Scheme, weights: Int8Weights) -> Model:
        made = self.stored(found, _quantized(found, scheme, weights))
        bare = _float(found)
        nodes = self.int8_nodes(bare.proto.graph.node[0], {name: name for name in made})
        del bare.proto.graph.node[:]
        bare.proto.graph.node.extend(nodes)
        read = {name for one in nodes for name in one.input}
        kept = {name: array for name, array in bare.tensors.items() if name in read}
        return Model(bare.proto, {**kept, **made})


class Lstm(Recurrent):
    """An LSTM. It keeps its bias and its state."""

    name, node_type = "lstm", "LSTM"

    def unlike(self, node: NodeProto) -> str:
        special = given(node, PEEPHOLES) or attribute(node, "layout", 0)
        return "peepholes or the batch first" if special else ""

    def stored(self, found: Found, int8: Mapping[str, Array]) -> dict[str, Array]:
        zeros = {
            f"{name}_zero": np.zeros(int8[f"{name}_scale"].shape, np.int8) for name in ("input", "state")
        }
        return {**int8, **zeros}

    def int8_nodes(self, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
        inputs = [*node.input, *[""] * (PEEPHOLES + 1 - len(node.input))]
        inputs[W], inputs[R] = names["input_int8"], names["state_int8"]
        inputs += [names[f"{name}_{part}"] for name in ("input", "state") for part in ("scale", "zero")]
        made = helper.make_node("DynamicQuantizeLSTM", inputs, node.output, node.name, domain=OWN_DOMAIN)
        made.attribute.extend(item for item in node.attribute if item.name != "layout")
        return [made]


def given(node: NodeProto, slot: int) -> bool:
    """Whether a node has this input."""
    return len(node.input) > slot and bool(node.input[slot])


def _quantized(found: Found, scheme: Scheme, weights: Int8Weights) -> dict[str, Array]:
    """Values and scales of both weights, as kernels have them: (directions, inputs, gates)."""
    made: dict[str, Array] = {}
    for name, weight in zip(("input", "state"), found.extra, strict=True):
        flat = weight.reshape(-1, weight.shape[-1])
        part = replace(found, op=replace(found.op, name=f"{found.op.name}/{name}"), weight=flat)
        int8 = weights.get(part, scheme)
        made[f"{name}_int8"] = np.asarray(int8.values.reshape(weight.shape).swapaxes(1, 2), order="C")
        made[f"{name}_scale"] = np.asarray(int8.scales.reshape(weight.shape[:2]), np.float32)
    return made


def _float(found: Found) -> Model:
    """A model of this layer with an empty state, and the output that the graph reads."""
    tensors = dict(zip(("w", "r"), found.extra, strict=True))
    tensors |= {} if found.bias is None else {"bias": found.bias}
    outputs = ["y" if name == found.output else "" for name in found.node.output]
    node = helper.make_node(found.kind.node_type, ["x", *tensors], outputs, "bare")
    node.attribute.extend(found.node.attribute)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * 3)
    graph = helper.make_graph([node], "bare", [x], [ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", QDQ_OPSET + 1), helper.make_opsetid(OWN_DOMAIN, 1)]
    proto: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Model(proto, tensors)


LSTM = Lstm()
