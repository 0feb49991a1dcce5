"""Max poolings, which int8 passes through: they take the largest of some neighbours, channel by channel."""

from __future__ import annotations

from collections.abc import Container

from octune.backends.tensorflow.graph.graph import Graph, attribute, node_of

__all__ = ["is_pool", "only_read_by", "pool_before", "pools"]


def is_pool(graph: Graph, name: str) -> bool:
    """Whether a node takes the largest of its neighbours, channel by channel: int8 can do that, too, and
    positive factors pass.
    """
    made = graph.nodes[name]
    return (
        made.op == "MaxPool"
        and attribute(made, "data_format").s in (b"", b"NHWC")
        and attribute(made, "padding").s != b"EXPLICIT"
    )


def pools(graph: Graph, tensor: str) -> list[str]:
    """The max poolings that read a tensor."""
    return [name for name in graph.followers(node_of(tensor)) if is_pool(graph, name)]


def only_read_by(graph: Graph, tail: str, readers: Container[str]) -> bool:
    """Whether an output is read only by these nodes, as it is or behind a pooling: its rounding is then that
    of their input.
    """

    def reads(name: str) -> bool:
        return name in readers or (is_pool(graph, name) and only_read_by(graph, name, readers))

    return graph.is_private(tail) and all(map(reads, graph.followers(tail)))


def pool_before(graph: Graph, tensor: str) -> str | None:
    """The max pooling that makes a tensor."""
    name = node_of(tensor)
    return name if name in graph and is_pool(graph, name) else None
