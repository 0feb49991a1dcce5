"""One int8 graph as several streams of work side by side: what tensor parallelism does over devices, over
cores.

    in_streams(graph, shapes, count=2)          # another graph; None if no part of this one can be split

Q, K, V and attention are split by heads, the two matmuls of a feed-forward block by hidden units.

oneDNN runs a small int8 matmul on one thread, and for the many small ops of a transformer at batch 1 waking
the other threads costs more than they save. Here each stream is a chain of ops that needs one thread only,
and streams meet just where a sum over channels is due. Such a graph wants a session with one thread per op
and ``count`` ops at a time (see :func:`streams_of`).

A region starts at int8 matmuls that read one tensor: each stream gets a part of their columns. It is followed
as long as every op works on those parts by themselves, and must end in int8 matmuls that sum over them: their
partial sums are added. Anything else that reads a part leaves the region as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.graph.emit import array_of, constant, node
from octune.backends.tensorflow.graph.graph import Array, Graph, as_input, attribute, node_of, tensor
from octune.backends.tensorflow.graph.shapes import Shapes

__all__ = ["MARK", "in_streams", "streams_of"]

# an attribute of the nodes that add streams up: a graph read from a file still knows it
MARK = "_octune_streams"
MATMUL = "_QuantizedMatMul"
BATCHED = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
UNARY = (
    "Identity",
    "Relu",
    "Relu6",
    "Tanh",
    "Sigmoid",
    "Erf",
    "Exp",
    "Neg",
    "Square",
    "Sqrt",
    "Rsqrt",
    "Softmax",
)
BINARY = ("Add", "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "SquaredDifference")

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor of which every stream has its part: along which axis, and the sizes of the whole as far as
    they are known.
    """

    axis: int
    sizes: Sizes

    @property
    def last(self) -> bool:
        return self.axis == len(self.sizes) - 1


class _Unfit(Exception):
    """Not all of what follows works part by part."""


def streams_of(graph: tf.Graph) -> int:
    """How many streams a graph was made for; 1 for any other graph."""
    return max(
        (
            op.node_def.attr[MARK].i
            for op in graph.get_operations()
            if op.type == "AddV2" and MARK in op.node_def.attr
        ),
        default=1,
    )


def in_streams(graph: Graph, shapes: Shapes, count: int) -> Graph | None:
    """A copy of a graph with all that can be split into ``count`` streams; None if nothing can."""
    splitter = _Splitter(graph.copy(), count)
    taken = set[str]()
    for made in list(graph):
        if made.op != MATMUL or made.name in taken:
            continue
        starts = [
            graph.nodes[name] for name, position in graph.readers(tensor(made.input[0])) if position == 0
        ]
        starts = [each for each in starts if each.op == MATMUL and each.name not in taken]
        region = _Region(graph, shapes, count)
        try:
            region.follow(starts)
        except _Unfit:
            continue
        taken.update(region.members, region.ends)
        splitter.replace(region, {each.name for each in starts})
    return splitter.graph if taken else None


class _Splitter:
    """Replaces regions of a graph by streams."""

    def __init__(self, graph: Graph, count: int) -> None:
        self.graph, self._count = graph, count

    def replace(self, region: _Region, starts: set[str]) -> None:
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

    def _read(self, reference: str, region: _Region, stream: int) -> str:
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
        values = _weight(self.graph, weight)
        columns = self._slice(values.shape[1], stream)
        parts = [self._constant(f"{name}/weight", values[:, columns], tf.qint8)]
        for role, read in (("bias", bias), ("weight_low", weight_low), ("weight_high", weight_high)):
            value = array_of(self.graph.maker(read))
            parts.append(self._constant(f"{name}/{role}", value[columns] if value.size > 1 else value))
        self._copied(made, name, [x, *parts[:2], low, high, *parts[2:], *output])

    def _part(self, made: NodeDef, region: _Region, stream: int) -> None:
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

    def _whole_shape(self, name: str, region: _Region) -> None:
        """A node that asks for the shape of a whole tensor reads that of a part, with one size multiplied."""
        made = self.graph.nodes[name]
        split = region.split[tensor(made.input[0])]
        kind = tf.as_dtype(attribute(made, "out_type").type or tf.int32.as_datatype_enum)
        part = self.graph.fresh(f"{name}/part")
        self._copied(made, part, [self._read(made.input[0], region, 0)])
        factors = np.ones(len(split.sizes), kind.as_numpy_dtype)
        factors[split.axis] = self._count
        self.graph.add(node(name, "Mul", [part, self._constant(f"{name}/factors", factors)], T=kind))

    def _sum(self, made: NodeDef, region: _Region) -> None:
        """A matmul over all channels as the sum of matmuls over some; bias and residual are added once."""
        added = len(_kinds(made, "Tdevice_inputs")) == 4
        x, weight, bias = made.input[:3]
        addend, scales = (made.input[3], made.input[4:]) if added else (None, made.input[3:])
        values, offset = _weight(self.graph, weight), array_of(self.graph.maker(bias))
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
                        **{MARK: self._count},
                    )
                )
            total = name


class _Region:
    """What can be split together, found by following tensors from where they are made."""

    def __init__(self, graph: Graph, shapes: Shapes, count: int) -> None:
        self._graph, self._shapes, self._count = graph, shapes, count
        self.split: dict[str, Split] = {}
        self.members: list[str] = []  # in the order of computation
        self.ends: list[str] = []
        self.sizes: list[str] = []  # Shape nodes
        self._behind: set[str] = set()
        # (reader, position) -> value, axis: streams read their part
        self.constants: dict[tuple[str, int], tuple[Array, int]] = {}

    def follow(self, starts: list[NodeDef]) -> None:
        """Raises _Unfit unless everything that follows these matmuls can be split up to matmuls that sum over
        the parts.
        """
        for made in starts:
            if len(_kinds(made, "Tdevice_inputs")) != 3 or not self._graph.is_private(made.name):
                raise _Unfit
            columns = _weight(self._graph, made.input[1]).shape[1]
            self._put(made, Split(1, (None, columns)))
        self._behind = self._after(starts)
        waiting = [reader for made in starts for reader in self._graph.followers(made.name)]
        while waiting:
            ready = [name for name in dict.fromkeys(waiting) if self._ready(name)]
            if not ready:
                raise _Unfit  # it needs what is computed from this region by another way
            waiting = [name for name in waiting if name not in ready]
            for name in ready:
                if name not in self.members and name not in self.ends and name not in self.sizes:
                    waiting += self._step(self._graph.nodes[name])
        if not self.ends:
            raise _Unfit

    def _put(self, made: NodeDef, split: Split) -> None:
        size = split.sizes[split.axis]
        if size is None or size % self._count or not self._graph.is_private(made.name):
            raise _Unfit
        self.members.append(made.name)
        self.split[f"{made.name}:0"] = split

    def _ready(self, name: str) -> bool:
        """Whether all inputs that will be split are split by now. Those that come from elsewhere never will
        be.
        """
        reads = self._graph.inputs(self._graph.nodes[name])
        return not any(read not in self.split and node_of(read) in self._behind for read in reads)

    def _after(self, starts: list[NodeDef]) -> set[str]:
        """All nodes that are computed from these and from themselves. A shape is not: it is there whatever
        becomes of the values.
        """
        behind, waiting = set[str](), [made.name for made in starts]
        while waiting:
            name = waiting.pop()
            if name not in behind and self._graph.nodes[name].op != "Shape":
                behind.add(name)
                waiting.extend(self._graph.followers(name))
        return behind

    def _step(self, made: NodeDef) -> list[str]:
        """Split one op; what comes after it."""
        reads = self._graph.inputs(made)
        found = [(position, self.split[read]) for position, read in enumerate(reads) if read in self.split]
        if not found or any(read.startswith("^") for read in made.input):
            raise _Unfit
        if made.op == MATMUL:
            self._end(made, found)
            return []
        if made.op == "Shape":
            self.sizes.append(made.name)
            return []
        rule: Callable[[NodeDef, list[str], list[tuple[int, Split]]], Split]
        if made.op in UNARY:
            rule = self._same
        elif made.op in BINARY:
            rule = self._binary
        elif made.op in BATCHED:
            rule = self._batched
        else:
            rules = {
                "Reshape": self._reshape,
                "Transpose": self._transpose,
                "Einsum": self._einsum,
                "QuantizeV2": self._quantize,
            }
            if made.op not in rules:
                raise _Unfit
            rule = rules[made.op]
        self._put(made, rule(made, reads, found))
        return self._graph.followers(made.name)

    def _end(self, made: NodeDef, found: list[tuple[int, Split]]) -> None:
        fused = list(attribute(made, "fused_ops").list.s)
        if [position for position, _ in found] != [0] or not found[0][1].last or len(found[0][1].sizes) != 2:
            raise _Unfit
        if fused not in ([b"BiasAdd", b"Dequantize"], [b"BiasAdd", b"Add", b"Dequantize"]):
            raise _Unfit
        self.ends.append(made.name)

    # -- how ops hand a split on -----------------------------------------------------------------------------

    def _same(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        if made.op == "Softmax" and found[0][1].last:
            raise _Unfit
        return found[0][1]

    def _quantize(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        others = [f"{made.name}:{number}" for number in (1, 2)]
        if [position for position, _ in found] != [0] or any(map(self._graph.readers, others)):
            raise _Unfit
        return found[0][1]

    def _binary(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        first = found[0][1]
        if len(found) == 2:
            if (found[1][1].axis, len(found[1][1].sizes)) != (first.axis, len(first.sizes)):
                raise _Unfit
            return first
        other = self._shapes[reads[1 - found[0][0]]]
        if other is None or len(other) > len(first.sizes):
            raise _Unfit
        place = first.axis - (len(first.sizes) - len(other))
        if place >= 0 and other[place] != 1:
            position = 1 - found[0][0]
            value = value_of(self._graph, reads[position])
            if value is None or value.shape[place] != first.sizes[first.axis]:
                raise _Unfit
            self.constants[made.name, position] = (value, place)
        return first

    def _batched(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        if (
            len(found) != 2
            or len(found[0][1].sizes) != len(found[1][1].sizes)
            or found[0][1].axis != found[1][1].axis
        ):
            raise _Unfit
        left, right = found[0][1], found[1][1]
        if left.axis >= len(left.sizes) - 2:
            raise _Unfit
        rows = left.sizes[-1 if attribute(made, "adj_x").b else -2]
        columns = right.sizes[-2 if attribute(made, "adj_y").b else -1]
        return Split(left.axis, (*left.sizes[:-2], rows, columns))

    def _einsum(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        equation = attribute(made, "equation").s.decode().replace(" ", "")
        sides, _, out = equation.partition("->")
        operands = sides.split(",")
        if "." in equation or len(operands) != 2 or len(found) != 2:
            raise _Unfit
        label, other = (operand[split.axis] for operand, (_, split) in zip(operands, found, strict=True))
        if (
            label != other
            or label not in out
            or any(len(set(part)) != len(part) for part in (*operands, out))
        ):
            raise _Unfit
        known: dict[str, int | None] = {}
        for operand, (_, split) in zip(operands, found, strict=True):
            known |= zip(operand, split.sizes, strict=True)
        return Split(out.index(label), tuple(known[name] for name in out))

    def _transpose(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        maker = self._graph.maker(reads[1])
        if maker.op != "Const" or reads[1] in self.split:
            raise _Unfit
        order = [int(axis) % len(found[0][1].sizes) for axis in array_of(maker)]
        return Split(order.index(found[0][1].axis), tuple(found[0][1].sizes[axis] for axis in order))

    def _reshape(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        """From the split axis on, sizes must be known before and after, and their products equal: then parts
        stay parts.
        """
        split, shape = found[0][1], self._graph.maker(reads[1])
        if [position for position, _ in found] != [0]:
            raise _Unfit
        known = self._target(made, shape)
        behind = split.sizes[split.axis :]
        if None in behind:
            raise _Unfit
        whole = int(np.prod(behind))  # type: ignore[arg-type]
        for axis in range(len(known) - 1, -1, -1):
            if None in known[axis:]:
                break
            if int(np.prod(known[axis:])) == whole and self._divisible(shape, axis, len(known)):  # type: ignore[arg-type]
                return Split(axis, known)
        raise _Unfit

    def _target(self, made: NodeDef, shape: NodeDef) -> Sizes:
        known = self._shapes[f"{made.name}:0"]
        if known is None and shape.op == "Const":  # a node that the reference graph does not have
            known = tuple(int(size) if size > 0 else None for size in array_of(shape))
        return known or ()

    def _divisible(self, shape: NodeDef, axis: int, rank: int) -> bool:
        """Whether one size of a shape can be replaced."""
        if shape.op == "Const":
            return True
        if shape.op == "Pack":
            first = attribute(shape, "axis").i == 0
            return bool(first and self._graph.maker(shape.input[axis]).op == "Const")
        if (
            shape.op == "ConcatV2"
            and len(shape.input) == 3
            and self._graph.maker(shape.input[1]).op == "Const"
        ):
            return axis >= rank - int(array_of(self._graph.maker(shape.input[1])).size)
        return False


def _weight(graph: Graph, reference: str) -> Array:
    return np.asarray(array_of(graph.maker(reference))).view(np.int8)


def _kinds(made: NodeDef, name: str) -> list[int]:
    return list(attribute(made, name).list.type)
