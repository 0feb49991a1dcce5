"""Recurrent layers: LSTM.

ONNX Runtime has a whole layer in int8, in which input and state are quantized at every step in the range that
they have there. OpenVINO does not have that op, so in its graph the layer stays as it is.
"""

from __future__ import annotations

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

__all__ = ["LSTM"]

W, R, BIAS, INITIAL_H, INITIAL_C, PEEPHOLES = 1, 2, 3, 5, 6, 7  # input slots
OWN_DOMAIN = "com.microsoft"


class Lstm(Kind):
    """An LSTM of one or two directions. Its weights are (directions, gates, inputs) for the input and for the
    state.
    """

    name, node_type = "lstm", "LSTM"

    def schemes(self) -> tuple[Scheme, ...]:
        return (Scheme.int8("dynamic"), Scheme.fp32())

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        weights = [view.constant(node.input[slot]) for slot in (W, R)]
        bias = view.constant(node.input[BIAS]) if _given(node, BIAS) else None
        w, r = weights
        if w is None or r is None or (bias is None and _given(node, BIAS)):
            return self.left_in_float(index, node, "its weights are computed, not stored")
        if not all(one.dtype == np.float32 and np.isfinite(one).all() for one in (w, r)):
            return self.left_in_float(index, node, "its weights are not finite float32 numbers")
        if _given(node, PEEPHOLES) or attribute(node, "layout", 0):
            return self.left_in_float(
                index, node, "it has peepholes or the batch first, for which there is no int8 kernel"
            )
        signature = f"LSTM{list(w.shape)} {attribute(node, 'direction', b'forward').decode()}"
        op = Op(node.name, self.name, self.schemes(), int(w.size + r.size), signature)
        # Only (outputs, inputs) can be shared out to repairs, so the weights are kept in `extra`.
        return Found(self, op, index, node, bias=bias, extra=(w, r))

    def constants(self, found: Found) -> list[Array]:
        return [*found.extra, *([] if found.bias is None else [found.bias])]

    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        """The kernel itself against fp32, both from an empty state."""
        key, weights = at.found.op.name, at.context.weights
        exact = at.context.session(f"{key} fp32", lambda: _float(at.found))
        int8 = at.context.session(f"{key} {scheme}", lambda: _alone(at.found, scheme, weights))
        x = {"x": np.asarray(at.inputs[0], np.float32)}
        return np.asarray(int8.run(None, x)[0] - exact.run(None, x)[0], np.float32)

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        if not insertion.own_ops:
            return
        edit = insertion.edit
        stored = {
            name: edit.tensor(f"{found.op.name}/{name}", array)
            for name, array in _quantized(found, scheme, insertion.weights).items()
        }
        node = edit.node(found.index)
        edit.replace(found.index, [_int8_node(node, stored)])


def _given(node: NodeProto, slot: int) -> bool:
    return len(node.input) > slot and bool(node.input[slot])


def _quantized(found: Found, scheme: Scheme, weights: Int8Weights) -> dict[str, Array]:
    """Values, scales and zero points of both weights, as the kernel has them: (directions, inputs, gates)."""
    made: dict[str, Array] = {}
    for name, weight in zip(("input", "state"), found.extra, strict=True):
        flat = weight.reshape(-1, weight.shape[-1])
        part = replace(found, op=replace(found.op, name=f"{found.op.name}/{name}"), weight=flat)
        int8 = weights.get(part, scheme)
        made[f"{name}_int8"] = np.asarray(int8.values.reshape(weight.shape).swapaxes(1, 2), order="C")
        made[f"{name}_scale"] = int8.scales.reshape(weight.shape[:2])
        made[f"{name}_zero"] = np.zeros(weight.shape[:2], np.int8)
    return made


def _int8_node(node: NodeProto, stored: dict[str, str]) -> NodeProto:
    """The same layer in int8, with the names of its weights."""
    inputs = [*node.input, *[""] * (PEEPHOLES + 1 - len(node.input))]
    inputs[W], inputs[R] = stored["input_int8"], stored["state_int8"]
    inputs += [stored[f"{name}_{part}"] for name in ("input", "state") for part in ("scale", "zero")]
    made = helper.make_node("DynamicQuantizeLSTM", inputs, node.output, node.name, domain=OWN_DOMAIN)
    made.attribute.extend(item for item in node.attribute if item.name != "layout")
    return made


def _alone(found: Found, scheme: Scheme, weights: Int8Weights) -> Model:
    made = _quantized(found, scheme, weights)
    bare = _float(found)
    node = _int8_node(bare.proto.graph.node[0], {name: name for name in made})
    del bare.proto.graph.node[:]
    bare.proto.graph.node.append(node)
    return Model(bare.proto, {**{k: v for k, v in bare.tensors.items() if k == "bias"}, **made})


def _float(found: Found) -> Model:
    """A model of this layer with an empty state, and the output that the graph reads."""
    tensors = dict(zip(("w", "r"), found.extra, strict=True))
    tensors |= {} if found.bias is None else {"bias": found.bias}
    outputs = ["y" if name == found.output else "" for name in found.node.output]
    node = helper.make_node("LSTM", ["x", *tensors], outputs)
    node.attribute.extend(found.node.attribute)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * 3)
    graph = helper.make_graph([node], "bare", [x], [ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", QDQ_OPSET + 1), helper.make_opsetid(OWN_DOMAIN, 1)]
    proto: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Model(proto, tensors)


LSTM = Lstm()
