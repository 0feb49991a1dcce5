"""Ops that int8 passes through between convolutions: poolings and concatenations.

A max pooling takes the largest of some neighbours, and a concatenation only moves numbers: on one grid, both
are as exact on integers as on floats. An average pooling rounds once more, and averages cover a smaller range
than what they are made of. So it passes only right before the op that reads it, which then takes the grid of
what is averaged.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import tensorflow as tf

from octune.backends.tensorflow.graph.graph import Graph, attribute, node_of

__all__ = [
    "concatenation_before",
    "joined",
    "max_pools",
    "only_read_by",
    "pool_before",
    "reached",
    "received",
]

POOLS = ("MaxPool", "AvgPool")


def max_pools(graph: Graph, tensor: str) -> list[str]:
    """The max poolings that read a tensor: positive factors pass through these."""
    return [name for name in graph.followers(node_of(tensor)) if _is(graph, name, "MaxPool")]


def pool_before(graph: Graph, tensor: str) -> str | None:
    """The pooling that makes a tensor."""
    name = node_of(tensor)
    return name if any(_is(graph, name, op) for op in POOLS) else None


def concatenation_before(graph: Graph, tensor: str) -> str | None:
    """The concatenation that makes a tensor."""
    name = node_of(tensor)
    return name if _is(graph, name, "ConcatV2") else None


def joined(graph: Graph, concatenation: str) -> list[str]:
    """What a concatenation joins."""
    return graph.inputs(graph.nodes[concatenation])[:-1]


def reached(graph: Graph, tensor: str) -> Iterator[str]:
    """The tensor itself, and what int8 on its grid becomes behind poolings and concatenations; the nearest
    first.
    """
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop(0)
        yield tensor
        for name in graph.followers(node_of(tensor)):
            if _is(graph, name, "AvgPool"):
                yield f"{name}:0"
            elif _passes(graph, name) and f"{name}:0" not in waiting:
                waiting.append(f"{name}:0")


def received(graph: Graph, tensor: str, made: Container[str]) -> bool:
    """Whether any of these tensors arrives here, as it is or through what int8 passes."""
    pool = pool_before(graph, tensor)
    tensor = graph.inputs(graph.nodes[pool])[0] if pool else tensor
    return _received(graph, tensor, made)


def only_read_by(graph: Graph, tail: str, readers: Container[str]) -> bool:
    """Whether an output is read only by these nodes, as it is or through what int8 passes: its rounding is
    then that of their input.
    """

    def reads(name: str) -> bool:
        if name in readers:
            return True
        if _is(graph, name, "AvgPool"):
            return graph.is_private(name) and all(follower in readers for follower in graph.followers(name))
        return _passes(graph, name) and only_read_by(graph, name, readers)

    return graph.is_private(tail) and all(map(reads, graph.followers(tail)))


def _received(graph: Graph, tensor: str, made: Container[str]) -> bool:
    name = node_of(tensor)
    before = graph.inputs(graph.nodes[name]) if _passes(graph, name) else []
    return tensor in made or any(_received(graph, each, made) for each in before)


def _passes(graph: Graph, name: str) -> bool:
    return _is(graph, name, "MaxPool") or _is(graph, name, "ConcatV2")


def _is(graph: Graph, name: str, op: str) -> bool:
    """Whether a node is such an op, in a form that can be done on int8."""
    made = graph.nodes.get(name)
    if made is None or made.op != op or attribute(made, "T").type not in (0, tf.float32.as_datatype_enum):
        return False
    if op == "ConcatV2":
        return True
    return attribute(made, "data_format").s in (b"", b"NHWC") and attribute(made, "padding").s != b"EXPLICIT"
