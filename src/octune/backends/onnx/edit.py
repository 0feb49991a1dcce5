"""Changes to a graph: nodes are replaced or added after tensors, and what nothing reads any more is left out.

    edit = Edit(view)
    edit.node(3).input[0] = edit.after("hidden", "QuantizeLinear", [...])
    model = edit.finish()

The graph that is viewed is not touched; nodes that do not change are shared, tensors always are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from octune.backends.onnx.graph import Array, Model, View, captured, headed_like, subgraphs, unused

__all__ = ["Edit"]


class Edit:
    """Collects changes to a viewed graph."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.tensors: dict[str, Array] = {}
        self._nodes: dict[int, list[NodeProto]] = {}
        self._after: dict[str, list[NodeProto]] = {}
        self._start: list[NodeProto] = []
        self._renamed: dict[str, str] = {}
        self._made: set[str] = set()  # what added nodes compute
        self._taken: set[str] = {
            *view.model.tensors,
            *view.inputs,
            *(name for node in view.nodes for name in node.output),
        }
        self._taken.update(name for node in view.nodes for inner in subgraphs(node) for name in _names(inner))
        self.outputs: list[Any] = []
        self.inputs: list[Any] = []

    def name(self, wanted: str) -> str:
        """A tensor name that is not taken."""
        made = unused(wanted, self._taken)
        self._taken.add(made)
        return made

    def tensor(self, wanted: str, value: Any) -> str:
        """Store a tensor; returns its name."""
        name = self.name(wanted)
        self.tensors[name] = np.asarray(value)
        return name

    def node(self, index: int) -> NodeProto:
        """A node that may be changed."""
        if index not in self._nodes:
            copy = NodeProto()
            copy.CopyFrom(self.view.nodes[index])
            self._nodes[index] = [copy]
        return self._nodes[index][-1]

    def replace(self, index: int, nodes: Sequence[NodeProto]) -> None:
        """Put other nodes in a node's place."""
        self._nodes[index] = list(nodes)

    def after(
        self, tensor: str, op_type: str, inputs: Sequence[str], *outputs: str, **attributes: Any
    ) -> str:
        """Add a node right after a tensor is made; returns its first output."""
        made = helper.make_node(
            op_type, list(inputs), list(outputs), name=f"{outputs[0]}/{op_type}", **attributes
        )
        there = self.view.producer(tensor) is None and tensor not in self._made
        (self._start if there else self._after.setdefault(tensor, [])).append(made)
        self._made.update(outputs)
        return outputs[0]

    def start(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node that needs only stored tensors."""
        self._start.append(
            helper.make_node(op_type, list(inputs), [output], name=f"{output}/{op_type}", **attributes)
        )
        return output

    def insert(self, tensor: str, op_type: str, other: str) -> None:
        """Put a node that combines a tensor with another one between it and all its readers."""
        raw = self._renamed_output(tensor, "before")
        self._after.setdefault(raw, []).append(
            helper.make_node(op_type, [raw, other], [tensor], name=f"{raw}/{op_type}")
        )

    def take_over(self, tensor: str, quantized: str, dequantized: str) -> None:
        """From now on ``tensor`` is what ``dequantized`` was: all its readers get that, and only
        ``quantized`` reads the original.
        """
        raw = self._renamed_output(tensor, "float")
        added = self._after[tensor]
        for made in added:
            if quantized in made.output:
                made.input[:] = [raw if name == tensor else name for name in made.input]
            made.output[:] = [tensor if name == dequantized else name for name in made.output]
        pair = [made for made in added if quantized in made.output or tensor in made.output]
        self._after[raw] = pair
        self._after[tensor] = [made for made in added if all(made is not one for one in pair)]
        self._renamed[dequantized] = tensor

    def _renamed_output(self, tensor: str, suffix: str) -> str:
        """Let the node that makes a tensor call it by a new name, so that another node can have its name."""
        raw = self.name(f"{tensor}/{suffix}")
        index = self.view.producer(tensor)
        if index is None:
            raise ValueError(f"{tensor} has no producer")
        node = self.node(index)
        node.output[:] = [raw if name == tensor else name for name in node.output]
        return raw

    def finish(self) -> Model:
        """The changed graph with the tensors that it needs."""
        nodes: list[NodeProto] = []

        def emit(node: NodeProto) -> None:
            if any(name in self._renamed for name in node.input):
                copy = NodeProto()
                copy.CopyFrom(node)
                copy.input[:] = [self._renamed.get(name, name) for name in node.input]
                node = copy
            nodes.append(node)
            for output in node.output:
                for made in self._after.get(output, ()):
                    emit(made)

        for node in self._start:
            emit(node)
        for index, node in enumerate(self.view.nodes):
            for one in self._nodes.get(index, [node]):
                emit(one)
        return self._assembled(nodes)

    def _assembled(self, nodes: list[NodeProto]) -> Model:
        source = self.view.model.proto
        outputs = [*source.graph.output, *self.outputs]
        needed = {item.name for item in outputs}
        kept: list[NodeProto] = []
        for node in reversed(nodes):
            if any(name in needed for name in node.output):
                kept.append(node)
                needed.update(node.input)
                needed.update(*map(captured, subgraphs(node)))
        proto = headed_like(source)
        known = {item.domain for item in proto.opset_import} | {"", "ai.onnx"}
        proto.opset_import.extend(
            helper.make_opsetid(domain, 1) for domain in sorted({node.domain for node in kept} - known)
        )
        proto.graph.name = source.graph.name
        proto.graph.node.extend(reversed(kept))
        proto.graph.input.extend([*source.graph.input, *self.inputs])
        proto.graph.output.extend(outputs)
        proto.graph.initializer.extend(item for item in source.graph.initializer if item.name in needed)
        proto.graph.sparse_initializer.extend(source.graph.sparse_initializer)
        return Model(
            proto,
            {
                name: array
                for name, array in {**self.view.model.tensors, **self.tensors}.items()
                if name in needed
            },
        )


def _names(graph: Any) -> set[str]:
    """All names inside a subgraph."""
    names = {item.name for item in (*graph.input, *graph.initializer)} | {
        name for node in graph.node for name in node.output
    }
    return names.union(*(_names(inner) for node in graph.node for inner in subgraphs(node)))
