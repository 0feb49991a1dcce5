"""One int8 graph as several streams of work side by side: what tensor parallelism does over devices, over
cores.

    in_streams(graph, shapes, count=2)          # another graph; None if no part of this one can be split
    in_streams(..., own_threads=True)           # one that says that it wants a session of its own kind

Q, K, V and attention are split by heads, the two matmuls of a feed-forward block by hidden units.

oneDNN runs a small int8 matmul on one thread, and for the many small ops of a transformer at batch 1 waking
the other threads costs more than they save. Here each stream is a chain of ops that needs one thread only,
and streams meet just where a sum over channels is due. An ordinary session runs such a graph faster than the
usual one where ops are small, since it computes several ops at a time. One with a single thread for each op,
and ``count`` ops at a time, runs it fastest (see :func:`streams_of`).

A region starts at int8 matmuls that read one tensor: each stream gets a part of their columns. It is followed
as long as every op works on those parts by themselves, and must end in int8 matmuls that sum over them: their
partial sums are added. Anything else that reads a part leaves the region as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.graph.emit import array_of, constant, node
from octune.backends.tensorflow.graph.graph import Array, Graph, as_input, attribute, node_of, tensor
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.int8.regions import MATMUL, Region, Split, Unfit, kinds_of, weight_of

__all__ = ["MARK", "in_streams", "streams_of"]

# an attribute of the nodes that add streams up: a graph read from a file still knows it
MARK = "_octune_streams"


def streams_of(graph: tf.Graph) -> int:
    """For how many streams a graph wants a session of its own; 1 for any other graph."""
    return max(
        (
            op.node_def.attr[MARK].i
            for op in graph.get_operations()
            if op.type == "AddV2" and MARK in op.node_def.attr
        ),
        default=1,
    )


def in_streams(graph: Graph, shapes: Shapes, count: int, *, own_threads: bool = False) -> Graph | None:
    """A copy of a graph with all that can be split into ``count`` streams; None if nothing can."""
    splitter = _Splitter(graph.copy(), count, {MARK: count} if own_threads else {})
    taken = set[str]()
    for made in list(graph):
        if made.op != MATMUL or made.name in taken:
            continue
        starts = [
            graph.nodes[name] for name, position in graph.readers(tensor(made.input[0])) if position == 0
        ]
        starts = [each for each in starts if each.op == MATMUL and each.name not in taken]
        region = Region(graph, shapes, count)
        try:
            region.follow(starts)
        except Unfit:
            continue
        taken.update(region.members, region.ends)
        splitter.replace(region, {each.name for each in starts})
    return splitter.graph if taken else None


class _Splitter:
    """Replaces regions of a graph by streams."""

    def __init__(self, graph: Graph, count: int, mark: Mapping[str, int]) -> None:
        self.graph, self._count, self._mark = graph, count, mark

    def replace(self, region: Region, starts: set[str]) -> None:
        graph = self.graph
        old = [graph.nodes[name] for name in (*region.members, *region.ends)]
        for name in region.sizes:
            self._whole_shape(name, region)
        for name in region.members:
            for stream in range(self._count):
                if name in starts:
                    self._columns(graph.nodes[name], stream)
                else:
                    self._part(graph.nodes[name], region, stream)
        for name in region.ends:
            self._sum(graph.nodes[name], region)
        graph.sweep(each.name for each in old if each.name not in region.ends)
        graph.sweep(node_of(read) for each in old for read in each.input)

    def _name(self, name: str, stream: int) -> str:
        return f"{name}/stream_{stream}"

    def _read(self, reference: str, region: Region, stream: int) -> str:
        """An input as a stream reads it: its own part, or what all share."""
        key = tensor(reference)
        return f"{self._name(node_of(key), stream)}:{key.partition(':')[2]}" if key in region.split else key

    def _copied(self, made: NodeDef, name: str, inputs: Iterable[str]) -> NodeDef:
        """Another node of the same kind."""
        twin = NodeDef(name=name, op=made.op, device=made.device, input=map(as_input, inputs))
        for key, value in made.attr.items():
            twin.attr[key].CopyFrom(value)
        self.graph.add(twin)
        return twin

    def _constant(self, name: str, value: Array, dtype: tf.DType | None = None) -> str:
        self.graph.add(constant(name, value, dtype))
        return f"{name}:0"

    def _slice(self, length: int, stream: int) -> slice:
        width = length // self._count
        return slice(stream * width, (stream + 1) * width)

    def _columns(self, made: NodeDef, stream: int) -> None:
        """Some columns of a matmul: of its weight, its bias and their scales."""
        x, weight, bias, low, high, weight_low, weight_high, *output = made.input
        name = self._name(made.name, stream)
        values = weight_of(self.graph, weight)
        columns = self._slice(values.shape[1], stream)
        parts = [self._constant(f"{name}/weight", values[:, columns], tf.qint8)]
        for role, read in (("bias", bias), ("weight_low", weight_low), ("weight_high", weight_high)):
            value = array_of(self.graph.maker(read))
            parts.append(self._constant(f"{name}/{role}", value[columns] if value.size > 1 else value))
        self._copied(made, name, [x, *parts[:2], low, high, *parts[2:], *output])

    def _part(self, made: NodeDef, region: Region, stream: int) -> None:
        """An op that works on any part as it does on the whole."""
        inputs = [self._read(read, region, stream) for read in made.input]
        for position in (0, 1):
            if (made.name, position) in region.constants:
                value, axis = region.constants[made.name, position]
                part = np.take(
                    value, range(*self._slice(value.shape[axis], stream).indices(value.shape[axis])), axis
                )
                inputs[position] = self._constant(f"{self._name(made.name, stream)}/constant", part)
        if made.op == "Reshape":
            split = region.split[f"{made.name}:0"]
            inputs[1] = self._smaller(node_of(made.input[1]), split, self._name(made.name, stream) + "/shape")
        self._copied(made, self._name(made.name, stream), inputs)

    def _smaller(self, shape: str, split: Split, name: str) -> str:
        """The shape of a part: one size of the whole's divided."""
        made, axis = self.graph.nodes[shape], split.axis
        size = int(split.sizes[axis] or 0) // self._count
        if made.op == "Const":
            value = array_of(made).copy()
            value[axis] = size
            return self._constant(name, value)
        # Pack has an input for every size; ConcatV2 has sizes known at run time, and constant ones behind
        # them.
        position = axis if made.op == "Pack" else 1
        value = array_of(self.graph.maker(made.input[position])).copy()
        value[... if made.op == "Pack" else axis - len(split.sizes)] = size
        part = self._constant(f"{name}/part", value)
        self._copied(
            made, name, [part if number == position else read for number, read in enumerate(made.input)]
        )
        return f"{name}:0"

    def _whole_shape(self, name: str, region: Region) -> None:
        """A node that asks for the shape of a whole tensor reads that of a part, with one size multiplied."""
        made = self.graph.nodes[name]
        split = region.split[tensor(made.input[0])]
        kind = tf.as_dtype(attribute(made, "out_type").type or tf.int32.as_datatype_enum)
        part = self.graph.fresh(f"{name}/part")
        self._copied(made, part, [self._read(made.input[0], region, 0)])
        factors = np.ones(len(split.sizes), kind.as_numpy_dtype)
        factors[split.axis] = self._count
        self.graph.add(node(name, "Mul", [part, self._constant(f"{name}/factors", factors)], T=kind))

    def _sum(self, made: NodeDef, region: Region) -> None:
        """A matmul over all channels as the sum of matmuls over some; bias and residual are added once."""
        added = len(kinds_of(made, "Tdevice_inputs")) == 4
        x, weight, bias = made.input[:3]
        addend, scales = (made.input[3], made.input[4:]) if added else (None, made.input[3:])
        values, offset = weight_of(self.graph, weight), array_of(self.graph.maker(bias))
        total = ""
        for stream in range(self._count):
            name = self._name(made.name, stream)
            part = self._constant(f"{name}/weight", values[self._slice(values.shape[0], stream)], tf.qint8)
            shift = self._constant(f"{name}/bias", offset if stream == 0 else np.zeros_like(offset))
            extra = [addend] if addend is not None and stream == 0 else []
            twin = self._copied(made, name, [self._read(x, region, stream), part, shift, *extra, *scales])
            if addend is not None and not extra:
                del twin.attr["Tdevice_inputs"].list.type[3]
                twin.attr["fused_ops"].list.s.remove(b"Add")
            if stream:
                name = made.name if stream == self._count - 1 else f"{name}/sum"
                self.graph.add(
                    node(
                        name,
                        "AddV2",
                        [total, self._name(made.name, stream)],
                        T=tf.float32,
                        **self._mark,
                    )
                )
            total = name
