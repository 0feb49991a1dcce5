"""Parts of an int8 graph that can be split into streams: they begin at matmuls that read one tensor, and end
at matmuls that sum over the columns of those.

    region = Region(graph, shapes, count)
    region.follow(matmuls)                      # Unfit if something on the way does not work part by part
    region.members, region.ends, region.split
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.graph.emit import array_of
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.graph.shapes import Shapes

__all__ = ["MATMUL", "Region", "Split", "Unfit", "kinds_of", "weight_of"]

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


class Unfit(Exception):
    """Not all of what follows works part by part."""


class Region:
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
        """Raises Unfit unless everything that follows these matmuls can be split up to matmuls that sum over
        the parts.
        """
        for made in starts:
            if len(kinds_of(made, "Tdevice_inputs")) != 3 or not self._graph.is_private(made.name):
                raise Unfit
            columns = weight_of(self._graph, made.input[1]).shape[1]
            self._put(made, Split(1, (None, columns)))
        self._behind = self._after(starts)
        waiting = [reader for made in starts for reader in self._graph.followers(made.name)]
        while waiting:
            ready = [name for name in dict.fromkeys(waiting) if self._ready(name)]
            if not ready:
                raise Unfit  # it needs what is computed from this region by another way
            waiting = [name for name in waiting if name not in ready]
            for name in ready:
                if name not in self.members and name not in self.ends and name not in self.sizes:
                    waiting += self._step(self._graph.nodes[name])
        if not self.ends:
            raise Unfit

    def _put(self, made: NodeDef, split: Split) -> None:
        size = split.sizes[split.axis]
        if size is None or size % self._count or not self._graph.is_private(made.name):
            raise Unfit
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
            raise Unfit
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
                raise Unfit
            rule = rules[made.op]
        self._put(made, rule(made, reads, found))
        return self._graph.followers(made.name)

    def _end(self, made: NodeDef, found: list[tuple[int, Split]]) -> None:
        fused = list(attribute(made, "fused_ops").list.s)
        if [position for position, _ in found] != [0] or not found[0][1].last or len(found[0][1].sizes) != 2:
            raise Unfit
        if fused not in ([b"BiasAdd", b"Dequantize"], [b"BiasAdd", b"Add", b"Dequantize"]):
            raise Unfit
        self.ends.append(made.name)

    # -- how ops hand a split on -----------------------------------------------------------------------------

    def _same(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        if made.op == "Softmax" and found[0][1].last:
            raise Unfit
        return found[0][1]

    def _quantize(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        others = [f"{made.name}:{number}" for number in (1, 2)]
        if [position for position, _ in found] != [0] or any(map(self._graph.readers, others)):
            raise Unfit
        return found[0][1]

    def _binary(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        first = found[0][1]
        if len(found) == 2:
            if (found[1][1].axis, len(found[1][1].sizes)) != (first.axis, len(first.sizes)):
                raise Unfit
            return first
        other = self._shapes[reads[1 - found[0][0]]]
        if other is None or len(other) > len(first.sizes):
            raise Unfit
        place = first.axis - (len(first.sizes) - len(other))
        if place >= 0 and other[place] != 1:
            position = 1 - found[0][0]
            value = value_of(self._graph, reads[position])
            if value is None or value.shape[place] != first.sizes[first.axis]:
                raise Unfit
            self.constants[made.name, position] = (value, place)
        return first

    def _batched(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        if (
            len(found) != 2
            or len(found[0][1].sizes) != len(found[1][1].sizes)
            or found[0][1].axis != found[1][1].axis
        ):
            raise Unfit
        left, right = found[0][1], found[1][1]
        if left.axis >= len(left.sizes) - 2:
            raise Unfit
        rows = left.sizes[-1 if attribute(made, "adj_x").b else -2]
        columns = right.sizes[-2 if attribute(made, "adj_y").b else -1]
        return Split(left.axis, (*left.sizes[:-2], rows, columns))

    def _einsum(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        equation = attribute(made, "equation").s.decode().replace(" ", "")
        sides, _, out = equation.partition("->")
        operands = sides.split(",")
        if "." in equation or len(operands) != 2 or len(found) != 2:
            raise Unfit
        label, other = (operand[split.axis] for operand, (_, split) in zip(operands, found, strict=True))
        if (
            label != other
            or label not in out
            or any(len(set(part)) != len(part) for part in (*operands, out))
        ):
            raise Unfit
        known: dict[str, int | None] = {}
        for operand, (_, split) in zip(operands, found, strict=True):
            known |= zip(operand, split.sizes, strict=True)
        return Split(out.index(label), tuple(known[name] for name in out))

    def _transpose(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        maker = self._graph.maker(reads[1])
        if maker.op != "Const" or reads[1] in self.split:
            raise Unfit
        order = [int(axis) % len(found[0][1].sizes) for axis in array_of(maker)]
        return Split(order.index(found[0][1].axis), tuple(found[0][1].sizes[axis] for axis in order))

    def _reshape(self, made: NodeDef, reads: list[str], found: list[tuple[int, Split]]) -> Split:
        """From the split axis on, sizes must be known before and after, and their products equal: then parts
        stay parts.
        """
        split, shape = found[0][1], self._graph.maker(reads[1])
        if [position for position, _ in found] != [0]:
            raise Unfit
        known = self._target(made, shape)
        behind = split.sizes[split.axis :]
        if None in behind:
            raise Unfit
        whole = int(np.prod(behind))  # type: ignore[arg-type]
        for axis in range(len(known) - 1, -1, -1):
            if None in known[axis:]:
                break
            if int(np.prod(known[axis:])) == whole and self._divisible(shape, axis, len(known)):  # type: ignore[arg-type]
                return Split(axis, known)
        raise Unfit

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


def weight_of(graph: Graph, reference: str) -> Array:
    return np.asarray(array_of(graph.maker(reference))).view(np.int8)


def kinds_of(made: NodeDef, name: str) -> list[int]:
    return list(attribute(made, name).list.type)
