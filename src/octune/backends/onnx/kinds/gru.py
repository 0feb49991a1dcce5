"""GRU and plain recurrent layers, step by step: see :mod:`octune.backends.onnx.kinds.scanned`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.graph import Array, attribute
from octune.backends.onnx.kinds.scanned import Scanned, Step

__all__ = ["GRU", "RNN"]


class Gru(Scanned):
    """A GRU, whose reset gate works before or after the product of the state."""

    name, node_type = "gru", "GRU"
    functions = (b"Sigmoid", b"Tanh")
    pieces = (("gates", 2), ("new", 1))

    def of_state(self, node: NodeProto, values: Array, scale: Array, bias: Array) -> dict[str, Array]:
        """One matrix, or two where the reset gate works before the product. The part of the bias that the
        reset gate multiplies stays with the state.
        """
        size = len(scale) // 3
        gates, new = slice(2 * size), slice(2 * size, None)
        if not _resets_product(node):
            return {
                "gates_int8": values[:, gates],
                "gates_scale": scale[gates],
                "new_int8": values[:, new],
                "new_scale": scale[new],
                "halves": np.array([size, size], np.int64),
            }
        kept = np.concatenate([np.zeros(2 * size, np.float32), bias[new]])
        bias[new] = 0
        return {
            "state_int8": values,
            "state_scale": scale,
            "state_bias": kept,
            "parts": np.array([2 * size, size], np.int64),
            "halves": np.array([size, size], np.int64),
        }

    def step(self, step: Step, node: NodeProto, state: str, inputs: Sequence[str]) -> str:
        gates_in, new_in = inputs
        if _resets_product(node):
            product = step.product(state, "state", step.name("product"))
            outputs = step.name("gates_state"), step.name("new_product")
            from_state, new_state = step.split(product, "parts", outputs, axis=1)
        else:
            from_state, new_state = step.product(state, "gates", step.name("gates_state")), ""
        total = step.add("Add", [gates_in, from_state], step.name("gates_sum"))
        gates = step.add("Sigmoid", [total], step.name("gates"))
        update, reset = step.split(gates, "halves", (step.name("update"), step.name("reset")), axis=1)
        if new_state:
            new_state = step.add("Mul", [reset, new_state], step.name("new_state"))
        else:
            kept = step.add("Mul", [reset, state], step.name("kept"))
            new_state = step.product(kept, "new", step.name("new_state"))
        new = step.add("Tanh", [step.add("Add", [new_in, new_state], step.name("new_sum"))], step.name("new"))
        # update * state + (1 - update) * new
        change = step.add("Sub", [state, new], step.name("change"))
        part = step.add("Mul", [update, change], step.name("part"))
        return step.add("Add", [new, part], step.name("next"))


class Rnn(Scanned):
    """A layer with one function and no gates."""

    name, node_type = "rnn", "RNN"
    functions = (b"Tanh",)
    pieces = (("new", 1),)

    def of_state(self, node: NodeProto, values: Array, scale: Array, bias: Array) -> dict[str, Array]:
        return {"state_int8": values, "state_scale": scale}

    def step(self, step: Step, node: NodeProto, state: str, inputs: Sequence[str]) -> str:
        product = step.product(state, "state", step.name("product"))
        return step.add("Tanh", [step.add("Add", [inputs[0], product], step.name("sum"))], step.name("next"))


def _resets_product(node: NodeProto) -> bool:
    """Whether the reset gate multiplies the product of the state, and not the state."""
    return bool(attribute(node, "linear_before_reset", 0))


GRU, RNN = Gru(), Rnn()
