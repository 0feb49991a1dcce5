"""A graph as data: what freezing returns, and a view of it that knows its readers and can be changed.

    frozen = FrozenGraph(graph_def, inputs={"x": "x:0"}, outputs={"y": "dense/BiasAdd:0"})
    graph = Graph.of(frozen)
    graph.readers("x:0")                    # [(node name, input position), ...]

A tensor is always written with its output number (``dense/BiasAdd:0``), as sessions do. Inside a GraphDef the
``:0`` is left out, and ``^name`` is a control input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes

__all__ = ["FrozenGraph", "Graph", "Tap", "as_input", "attribute", "node_of", "tensor", "weight_bytes"]

Array = npt.NDArray[Any]
_NOTHING = AttrValue()


@dataclass(frozen=True)
class FrozenGraph:
    """A model as one GraphDef. All weights are Consts; functions are inlined where that is possible; the
    library is kept.
    """

    graph_def: GraphDef
    # argument name -> tensor name; empty when the graph reads its own iterator and nothing else
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]  # output name -> tensor name
    targets: tuple[str, ...] = ()  # ops that must survive: MakeIterator, initialisers, ...


@dataclass(frozen=True, slots=True)
class Tap:
    """A tensor of the reference graph that calibration looks at. Channels are along ``channel_axis``."""

    tensor: str
    channel_axis: int = -1


def tensor(reference: str) -> str:
    """``name`` and ``name:0`` are the same tensor; this is the one spelling used as a key."""
    return reference if ":" in reference else f"{reference}:0"


def node_of(reference: str) -> str:
    """The node that makes a tensor, or that a control input waits for."""
    return reference.removeprefix("^").partition(":")[0]


def as_input(tensor_name: str) -> str:
    """A tensor as an input of a NodeDef is written."""
    return tensor_name.removesuffix(":0")


def attribute(node: NodeDef, name: str) -> AttrValue:
    """An attribute for reading: reading a missing attribute of a NodeDef directly would add it."""
    return node.attr.get(name, _NOTHING)


def weight_bytes(graph_def: GraphDef) -> int:
    """Bytes of all constants, which is what a frozen graph weighs."""
    total = 0
    for node in graph_def.node:
        if node.op == "Const":
            value = node.attr["value"].tensor
            elements = int(np.prod([dim.size for dim in value.tensor_shape.dim], dtype=np.int64))
            total += (
                elements * dtypes.as_dtype(value.dtype).size
                if value.dtype != dtypes.string.as_datatype_enum
                else value.ByteSize()
            )
    return total


class Graph:
    """Nodes by name, with an index of readers. Nodes are shared between views, so they are replaced, never
    edited.
    """

    def __init__(self, nodes: Iterable[NodeDef], keep: Iterable[str]) -> None:
        self.nodes: dict[str, NodeDef] = {}
        # node -> {(reader, position): tensor or control input}
        self._readers: dict[str, dict[tuple[str, int], str]] = {}
        self.keep = frozenset(keep)  # nodes that are fed, fetched or run by name
        for node in nodes:
            self.add(node)

    @classmethod
    def of(cls, frozen: FrozenGraph) -> Graph:
        """A view of a frozen graph."""
        named = [*frozen.inputs.values(), *frozen.outputs.values(), *frozen.targets]
        return cls(frozen.graph_def.node, map(node_of, named))

    def copy(self) -> Graph:
        """Another view of the same nodes, to be changed on its own."""
        twin = Graph((), self.keep)
        twin.nodes = dict(self.nodes)
        twin._readers = {name: dict(readers) for name, readers in self._readers.items()}
        return twin

    # -- look ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[NodeDef]:
        return iter(self.nodes.values())

    def __contains__(self, name: object) -> bool:
        return name in self.nodes

    def maker(self, reference: str) -> NodeDef:
        """The node that makes a tensor."""
        return self.nodes[node_of(reference)]

    def inputs(self, node: NodeDef) -> list[str]:
        """The tensors that a node reads; control inputs are left out."""
        return [tensor(reference) for reference in node.input if not reference.startswith("^")]

    def readers(self, tensor_name: str) -> list[tuple[str, int]]:
        """The nodes that read a tensor, and at which input."""
        return [
            where
            for where, read in self._readers.get(node_of(tensor_name), {}).items()
            if read == tensor(tensor_name)
        ]

    def followers(self, name: str) -> list[str]:
        """The nodes that read any output of a node, or wait for it."""
        return list(dict.fromkeys(reader for reader, _ in self._readers.get(name, {})))

    def is_private(self, name: str) -> bool:
        """Whether this node is not asked for by name from outside, and no node inside waits for it."""
        return name not in self.keep and not any(
            read.startswith("^") for read in self._readers.get(name, {}).values()
        )

    # -- change ----------------------------------------------------------------------------------------------

    def add(self, node: NodeDef) -> None:
        """Put a node in, in place of one of the same name."""
        if node.name in self.nodes:
            self._forget(self.nodes[node.name])
        self.nodes[node.name] = node
        for position, reference in enumerate(node.input):
            read = reference if reference.startswith("^") else tensor(reference)
            self._readers.setdefault(node_of(reference), {})[node.name, position] = read

    def redirect(self, reader: str, position: int, tensor_name: str) -> None:
        """Let one input of a node read another tensor."""
        changed = NodeDef()
        changed.CopyFrom(self.nodes[reader])
        changed.input[position] = as_input(tensor_name)
        self.add(changed)

    def sweep(self, names: Iterable[str]) -> None:
        """Remove these nodes, and what only they needed, unless they are still read or asked for."""
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            node = self.nodes.get(name)
            if (
                node is None
                or name in self.keep
                or self._readers.get(name)
                or node.op.startswith("Placeholder")
            ):
                continue
            self._forget(self.nodes.pop(name))
            waiting.extend(node_of(reference) for reference in node.input)

    def fresh(self, name: str) -> str:
        """This name, or one like it that no node has."""
        number, candidate = 0, name
        while candidate in self.nodes:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def _forget(self, node: NodeDef) -> None:
        for position, reference in enumerate(node.input):
            self._readers.get(node_of(reference), {}).pop((node.name, position), None)
