"""Recurrent layers that ONNX Runtime has not in int8, taken apart: the inputs of all steps are one product in
front of a Scan, whose steps multiply the state.

    x -> DynamicQuantizeMatMul -> Split -> Scan(state -> DynamicQuantizeMatMul -> functions -> state)

Both products are int8 with ranges of their own: that of the whole input, and that of the state at every step.
OpenVINO does not have these ops, so in its graph the layer stays as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from octune.backends.onnx.graph import Array, attribute
from octune.backends.onnx.kinds.base import Found
from octune.backends.onnx.kinds.recurrent import INITIAL_H, OWN_DOMAIN, SEQUENCE_LENGTHS, Recurrent, given

__all__ = ["Scanned", "Step"]


class Scanned(Recurrent):
    """A layer whose steps are written out. A kind says what the products of input and state are for."""

    functions: tuple[bytes, ...]  # of a direction: others are left in float
    pieces: tuple[tuple[str, int], ...]  # of the product of the input: their names, and sizes in states

    @abstractmethod
    def of_state(self, node: NodeProto, values: Array, scale: Array, bias: Array) -> dict[str, Array]:
        """The tensors that a step of one direction reads, from the weight and the bias of its state. What is
        left in ``bias`` is added to that of the input.
        """

    @abstractmethod
    def step(self, step: Step, node: NodeProto, state: str, inputs: Sequence[str]) -> str:
        """Write one step of one direction; returns the next state."""

    def unlike(self, node: NodeProto) -> str:
        functions = tuple(attribute(node, "activations", ()))
        if functions != self.functions * (len(functions) // len(self.functions)):
            return "functions of its own"
        special = attribute(node, "layout", 0) or attribute(node, "clip", 0.0)
        return "clipping or the batch first" if special else ""

    def stored(self, found: Found, int8: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs of all directions are in one matrix."""
        count, gates = int8["state_scale"].shape
        size = gates // sum(states for _, states in self.pieces)
        bias = np.zeros((count, 2 * gates), np.float32) if found.bias is None else found.bias
        of_input, of_state = (np.array(part) for part in np.split(bias, 2, axis=1))
        made: dict[str, Array] = {}
        for number in range(count):
            values, scale = int8["state_int8"][number], int8["state_scale"][number]
            tensors = self.of_state(found.node, values, scale, of_state[number])
            made |= {f"{name}{number}": np.ascontiguousarray(array) for name, array in tensors.items()}
        return {
            **made,
            "input_int8": np.concatenate(list(int8["input_int8"]), axis=1),
            "input_scale": int8["input_scale"].reshape(-1),
            "input_bias": (of_input + of_state).reshape(-1),
            "pieces": np.array([states * size for _, states in self.pieces] * count, np.int64),
            "ones": np.ones(count, np.int64),
            "size": np.array([size], np.int64),
            "nothing": np.zeros(1, np.float32),
            **{name: np.array([value], np.int64) for name, value in (("zero", 0), ("one", 1), ("two", 2))},
        }

    def int8_nodes(self, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
        return _Layer(self, node, names).nodes()


class Step:
    """Writes nodes of one direction, or of what all have in common (``number`` is empty then)."""

    def __init__(self, layer: str, names: Mapping[str, str], number: int | str = "") -> None:
        self._layer, self._names, self._number = layer, names, number
        self.nodes: list[NodeProto] = []

    def name(self, name: str) -> str:
        """A name that belongs to the layer."""
        return f"{self._layer}/{name}{self._number}"

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(op, list(inputs), [output], output, **attributes))
        return output

    def split(self, x: str, pieces: str, outputs: Sequence[str], axis: int) -> Sequence[str]:
        """Parts of a tensor, whose sizes are stored."""
        inputs = [x, self._names[f"{pieces}{self._number}"]]
        self.nodes.append(helper.make_node("Split", inputs, list(outputs), f"{outputs[0]}/Split", axis=axis))
        return outputs

    def product(self, x: str, part: str, output: str) -> str:
        """x times an int8 weight, plus its bias if it has one."""
        weight, scale = (self._names[f"{part}_{name}{self._number}"] for name in ("int8", "scale"))
        bias = self._names.get(f"{part}_bias{self._number}")
        inputs = [x, weight, scale, *(["", bias] if bias else [])]
        return self.add("DynamicQuantizeMatMul", inputs, output, domain=OWN_DOMAIN)


class _Layer:
    """Writes the nodes of one layer."""

    def __init__(self, kind: Scanned, node: NodeProto, names: Mapping[str, str]) -> None:
        self._kind, self._node, self._names = kind, node, names
        direction = attribute(node, "direction", b"forward")
        self._backward = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}[direction]
        self._steps = [Step(f"{node.name}/step", names, number) for number in range(len(self._backward))]
        self._outside = Step(node.name, names)

    def nodes(self) -> list[NodeProto]:
        """All of them, in order. The last have the layer's outputs."""
        node, names, out = self._node, self._names, self._outside
        product = out.product(node.input[0], "input", out.name("product"))
        numbers = range(len(self._backward))
        pieces = [out.name(f"{part}{number}") for number in numbers for part, _ in self._kind.pieces]
        out.split(product, "pieces", pieces, axis=2)
        initial, final, outputs = (
            [out.name(f"{part}{number}") for number in numbers] for part in ("initial", "final", "outputs")
        )
        self._initial(initial)
        real = [self._real()] * len(numbers) if given(node, SEQUENCE_LENGTHS) else []
        scan = helper.make_node(
            "Scan",
            [*initial, *pieces, *real],
            [*final, *outputs],
            out.name("scan"),
            body=self._body(),
            num_scan_inputs=len(pieces) + len(real),
            scan_input_directions=[
                *(way for way in self._backward for _ in self._kind.pieces),
                *(way for way, _ in zip(self._backward, real, strict=False)),
            ],
            scan_output_directions=self._backward,
        )
        out.nodes.append(scan)
        for result, parts, axis, place in zip(
            node.output, (outputs, final), (1, 0), ("one", "zero"), strict=False
        ):
            if result:
                apart = [out.add("Unsqueeze", [part, names[place]], f"{part}/apart") for part in parts]
                out.add("Concat", apart, result, axis=axis)
        return out.nodes

    def _initial(self, wanted: Sequence[str]) -> None:
        """The state of every direction before the first step."""
        node, names, out = self._node, self._names, self._outside
        if given(node, INITIAL_H):
            apart = [f"{state}/given" for state in wanted]
            out.split(node.input[INITIAL_H], "ones", apart, axis=0)
            for whole, state in zip(apart, wanted, strict=True):
                out.add("Squeeze", [whole, names["zero"]], state)
            return
        shape = out.add("Shape", [node.input[0]], out.name("shape"))
        batch = out.add("Slice", [shape, names["one"], names["two"]], out.name("batch"))
        whole = out.add("Concat", [batch, names["size"]], out.name("state_shape"), axis=0)
        for state in wanted:
            out.add("ConstantOfShape", [whole], state)

    def _real(self) -> str:
        """Whether a step is within each sequence: (steps, batch, 1)."""
        node, names, out = self._node, self._names, self._outside
        shape = out.add("Shape", [node.input[0]], out.name("input_shape"))
        steps = out.add("Slice", [shape, names["zero"], names["one"]], out.name("steps"))
        ones = out.add(
            "ConstantOfShape", [steps], out.name("every"), value=numpy_helper.from_array(np.ones(1, np.int64))
        )
        numbers = out.add("Transpose", [out.add("NonZero", [ones], out.name("places"))], out.name("numbers"))
        lengths = out.add("Cast", [node.input[SEQUENCE_LENGTHS]], out.name("lengths"), to=TensorProto.INT64)
        within = out.add("Less", [numbers, lengths], out.name("within"))
        return out.add("Unsqueeze", [within, names["two"]], out.name("real"))

    def _body(self) -> GraphProto:
        """One step of all directions: states and inputs in, states and outputs out. Behind the end of a
        sequence the state stays, and the output is zero.
        """
        states, inputs, after, outputs, real = [], [], [], [], []
        for step in self._steps:
            state, pieces = step.name("state"), [step.name(f"{part}_in") for part, _ in self._kind.pieces]
            made = self._kind.step(step, self._node, state, pieces)
            if given(self._node, SEQUENCE_LENGTHS):
                real.append(step.name("real"))
                outputs.append(
                    step.add("Where", [real[-1], made, self._names["nothing"]], step.name("output"))
                )
                made = step.add("Where", [real[-1], made, state], step.name("kept_state"))
            else:
                outputs.append(step.add("Identity", [made], step.name("output")))
            states.append(state)
            inputs += pieces
            after.append(made)
        nodes = [node for step in self._steps for node in step.nodes]
        reads, makes = (
            [_float(name) for name in group] for group in ([*states, *inputs], [*after, *outputs])
        )
        reads += [helper.make_tensor_value_info(name, TensorProto.BOOL, [None, None]) for name in real]
        return helper.make_graph(nodes, f"{self._node.name}/step", reads, makes)


def _float(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None])
