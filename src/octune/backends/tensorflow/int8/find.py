"""Which nodes could be quantized, and what of their surroundings goes into the same int8 op.

found = find(graph, shapes, support, normalised, inside=frames(graph))
found.fused_ops         # FusedOp by op name, in the order of computation
found.left_alone        # ops that stay as they are, each with the reason
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.dense import Normalised
from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.clean.formula import activation_of, regions
from octune.backends.tensorflow.clean.layernorm import LAYERNORM
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.int8.float_only import float_only
from octune.backends.tensorflow.int8.fused_op import FusedOp, Fusion
from octune.backends.tensorflow.int8.kinds import KINDS, Kind, kind_of
from octune.backends.tensorflow.int8.passages import only_read_by, pool_before, received
from octune.backends.tensorflow.int8.support import Support
from octune.plan import Op, Scheme

__all__ = ["Found", "find", "in_functions"]

ADDS = ("Add", "AddV2")
IN_LOOPS = "where int8 kernels prepare their weights at every step and take longer than fp32"
# Ops whose output has as many rows as their first input, and ops that have the shape of their only varying
# input.
ROWWISE = frozenset((*(kind.tf_op for kind in KINDS), "MaxPool", "AvgPool", "BiasAdd", LAYERNORM))
UNARY = (
    "Relu",
    "Relu6",
    "Elu",
    "LeakyRelu",
    "Tanh",
    "Sigmoid",
    "Erf",
    "Erfc",
    "Identity",
    "StopGradient",
    "Neg",
    "Square",
)
ELEMENTWISE = frozenset((*UNARY, "Mul", "Pow", "Add", "AddV2", "Sub"))


@dataclass(frozen=True)
class Found:
    """``fused_ops``: what could be quantized, by name. ``left_alone``: ops that stay as they are, each with
    the reason.
    """

    fused_ops: dict[str, FusedOp]
    left_alone: dict[str, Op]

    def ops(self) -> tuple[Op, ...]:
        """All of them, in the order of computation; those that are left alone come last."""
        return (*(fused.op for fused in self.fused_ops.values()), *self.left_alone.values())


def find(graph: Graph, shapes: Shapes, support: Support, normalised: Normalised, inside: set[str]) -> Found:
    """Look at every node once, in the order of computation. Nodes ``inside`` loops are left alone."""
    finder = _Finder(graph, shapes, support, normalised, inside)
    spellings = {spelling: kind for kind in KINDS for spelling in kind.spellings}
    for made in _in_order(graph):
        kind = kind_of(made.op)
        if kind is not None:
            finder.look(made, kind)
        elif made.name in normalised.reasons:
            finder.leave(made, spellings[made.op].name, normalised.reasons[made.name])
        elif (only := float_only(graph, shapes, made)) is not None:
            finder.leave(made, *only)
    return Found(_placed(graph, finder.fused_ops), finder.left_alone)


def _placed(graph: Graph, fused_ops: Mapping[str, FusedOp]) -> dict[str, FusedOp]:
    """Ops whose kernels output int8, among others of that sort. Between them there are no floats to convert:
    that costs less.
    """
    int8 = [fused for fused in fused_ops.values() if fused.kind.outputs_int8 and fused.op.can("int8")]
    cores, made = {fused.core for fused in int8}, {fused.plain.output for fused in int8}

    def placed(fused: FusedOp) -> FusedOp:
        receives = received(graph, fused.x, made)
        passed = only_read_by(graph, fused.plain.tail, cores)
        signature = fused.op.signature + " from int8" * receives + " to int8" * passed
        pool = pool_before(graph, fused.x)
        averages = receives and pool is not None and graph.nodes[pool].op == "AvgPool"
        return replace(
            fused,
            op=replace(fused.op, signature=signature),
            receives=receives,
            passes_on=passed,
            averaged=graph.inputs(graph.nodes[pool])[0] if averages and pool is not None else None,
        )

    return {name: placed(fused) if fused.kind.outputs_int8 else fused for name, fused in fused_ops.items()}


class _Finder:
    """What is known so far while a graph is looked through."""

    def __init__(
        self, graph: Graph, shapes: Shapes, support: Support, normalised: Normalised, inside: set[str]
    ) -> None:
        self._graph, self._shapes, self._support, self._inside = graph, shapes, support, inside
        self._names = {matmul: name for name, matmul in normalised.matmuls.items()}
        self._claimed: set[str] = set()
        self._origins: dict[str, str] = {}  # output of an op -> its input, which has as many rows
        self._paths: set[str] = set()
        self.fused_ops: dict[str, FusedOp] = {}
        self.left_alone: dict[str, Op] = {}

    # -- one node --------------------------------------------------------------------------------------------

    def look(self, made: NodeDef, kind: Kind) -> None:
        """One node of a kind that can be quantized."""
        name = self._names.get(made.name, made.name)
        weight = value_of(self._graph, self._graph.inputs(made)[1])
        if made.name in self._inside:
            self.leave(made, kind.name, f"it is inside a loop or a conditional of the graph, {IN_LOOPS}")
            return
        if weight is None:
            if kind.without_weight:
                self.leave(made, kind.name, kind.without_weight)
            return
        read = self._graph.inputs(made)[kind.operand]
        kind = kind.refined(weight, self._shapes[read], self._shapes[f"{made.name}:0"])
        reason = self._cannot(made, kind, weight)
        if reason:
            self.leave(made, kind.name, reason, int(weight.size))
            return
        able = self._support.runs(kind.kernel)
        note = "" if able else self._support.why or f"TensorFlow {tf.__version__} has no int8 {kind.noun}"
        floats = (*((Scheme.bf16(),) if self._support.bf16 else ()), Scheme.fp32())
        schemes = (*(kind.schemes() if able else ()), *floats)
        oriented = kind.oriented(made, weight)
        inner, columns = int(oriented.shape[-2]), kind.columns(oriented)
        lift, bias, plain, summed = self._fusion(made, columns, kind)
        x, path = self._source(made, inner) if kind.in_rows else (read, ())
        signature = f"{made.op}{tuple(weight.shape)}{plain.activation or ''}{'' if bias is None else '+bias'}"
        signature += kind.signature(made)
        op = Op(name, kind.name, schemes, int(weight.size), signature=signature, note=note)
        self.fused_ops[name] = FusedOp(
            op,
            kind,
            made.name,
            x,
            self._graph.inputs(made)[1],
            inner,
            columns,
            bias,
            plain,
            summed,
            path,
            lift,
        )
        self._claimed.update(plain.members)
        self._claimed.update(summed.members if summed else ())
        self._paths.update(path)
        self._origins.update({fusion.output: x for fusion in (plain, summed) if fusion})
        if lift:
            self._origins[f"{lift}:0"] = x

    def leave(self, made: NodeDef, kind: str, reason: str, parameters: int = 0) -> None:
        """An op that stays as it is."""
        name = self._names.get(made.name, made.name)
        self.left_alone[name] = Op(name, kind, (Scheme.fp32(),), parameters, signature=made.op, note=reason)

    def _cannot(self, made: NodeDef, kind: Kind, weight: Array) -> str:
        """Why this op cannot be quantized, or an empty string."""
        if attribute(made, "T").type != tf.float32.as_datatype_enum:
            return f"it computes in {tf.as_dtype(attribute(made, 'T').type).name}, not float32"
        if weight.size == 0 or not np.isfinite(weight).all():
            return "its weights are not finite numbers" if weight.size else "it has no weights"
        return kind.cannot(made, weight, self._shapes[self._graph.inputs(made)[kind.operand]])

    # -- its surroundings ------------------------------------------------------------------------------------

    def _source(self, made: NodeDef, inner: int) -> tuple[str, tuple[str, ...]]:
        """The tensor behind Reshapes that only count rows, so that ops that read it through different ones
        share its int8 form.
        """
        graph, x = self._graph, self._graph.inputs(made)[0]
        path: list[str] = []
        while (reshape := graph.nodes.get(node_of(x))) is not None and reshape.op == "Reshape":
            source = graph.inputs(reshape)[0]
            shape = self._shapes[source]
            if shape is None or not shape or shape[-1] != inner:
                break
            path.insert(0, reshape.name)
            x = source
        return x, tuple(path)

    def _only_reader(self, name: str) -> tuple[NodeDef, int] | None:
        """The one node that reads a node, if it is the only one and free to be fused."""
        readers = self._graph.readers(f"{name}:0")
        if len(readers) != 1 or not self._graph.is_private(name) or len(self._graph.followers(name)) != 1:
            return None
        reader = self._graph.nodes[readers[0][0]]
        return (
            None if reader.name in self._claimed or reader.name in self._inside else (reader, readers[0][1])
        )

    def _fusion(
        self, made: NodeDef, columns: int, kind: Kind
    ) -> tuple[str | None, Array | None, Fusion, Fusion | None]:
        """What can be fused behind an op: the Reshape behind it, the bias, and the two fusions."""
        members, lift, bias = [made.name], None, None
        trailing: tuple[int, ...] = (columns,)
        following = self._only_reader(made.name)
        if kind.in_rows and following is not None and following[0].op == "Reshape" and following[1] == 0:
            found = self._trailing(following[0], columns)
            if found is not None:
                lift, trailing = following[0].name, found
                members.append(lift)
                following = self._only_reader(lift)
        rank = len(self._shapes[f"{members[-1]}:0"] or ()) or kind.rank
        while (
            following is not None and (shift := self._bias(*following, columns, trailing, rank)) is not None
        ):
            bias = shift if bias is None else bias + shift
            members.append(following[0].name)
            following = self._only_reader(members[-1])
        summed = self._with_addend(made, members, following, kind)
        for region in (
            regions(self._graph, f"{members[-1]}:0", closed=True)
            if self._graph.is_private(members[-1])
            else ()
        ):
            activation = activation_of(self._graph, region)
            if activation is None or not kind.fuses(activation) or not self._claimed.isdisjoint(region.nodes):
                continue
            return lift, bias, Fusion((*members, *region.nodes), activation), None
        if lift is not None and len(members) == 2:  # nothing behind the Reshape to fuse: it is not in the way
            members, lift = members[:1], lift if summed else None
        return lift, bias, Fusion(tuple(members)), summed

    def _trailing(self, reshape: NodeDef, columns: int) -> tuple[int, ...] | None:
        """The last axes of a Reshape's output that are the columns of its input."""
        shape = self._shapes[f"{reshape.name}:0"] or ()
        for count in range(1, len(shape) + 1):
            last = shape[-count:]
            if None in last:
                return None
            sizes = tuple(int(size or 0) for size in last)
            if int(np.prod(sizes)) == columns:
                return sizes
        return None

    def _bias(
        self, reader: NodeDef, position: int, columns: int, trailing: tuple[int, ...], rank: int
    ) -> Array | None:
        """The constant that a node adds to each column."""
        if reader.op not in (*ADDS, "BiasAdd") or attribute(reader, "data_format").s not in (b"", b"NHWC"):
            return None
        value = value_of(self._graph, self._graph.inputs(reader)[1 - position])
        if value is None or value.ndim > rank or value.dtype != np.float32:
            return None
        while value.ndim > len(trailing) and value.shape[0] == 1:
            value = value[0]
        try:
            return np.broadcast_to(value, trailing).reshape(columns).astype(np.float32)
        except ValueError:
            return None

    def _with_addend(
        self, made: NodeDef, members: list[str], following: tuple[NodeDef, int] | None, kind: Kind
    ) -> Fusion | None:
        """The fusion that adds another activation: a residual connection."""
        if not kind.sums or following is None or following[0].op not in ADDS:
            return None
        add, position = following
        addend = self._graph.inputs(add)[1 - position]
        read = self._graph.inputs(made)[kind.operand]
        proof = self._same_shape(read, f"{members[-1]}:0", addend, kind)
        if proof is None or self._shapes.dtype(addend) != tf.float32:
            return None
        if not kind.sum_needs_relu:
            return Fusion((*members, add.name), None, addend, guarded=proof == "guard")
        relu = self._only_reader(add.name)
        if relu is None or relu[0].op != "Relu":
            return None
        region = next(
            (r for r in regions(self._graph, f"{add.name}:0", closed=True) if r.nodes == (relu[0].name,)),
            None,
        )
        activation = activation_of(self._graph, region) if region else None
        return Fusion((*members, add.name, relu[0].name), activation, addend) if activation else None

    def _same_shape(self, x: str, output: str, addend: str, kind: Kind) -> str | None:
        """Whether an addend has the shape of an output: "proven", "guard" (as far as is known), or None for
        no.

        The kernel does not look: it would read past the end of a smaller addend.
        """
        ours, theirs = self._shapes[output], self._shapes[addend]
        if not ours or ours != theirs or ours[-1] is None:
            return None
        if None not in ours or (
            self._rows(x) == self._rows(addend) and (kind.in_rows or None not in ours[1:])
        ):
            return "proven"
        return "guard" if kind.in_rows else None

    def _rows(self, tensor: str) -> str:
        """The tensor from which another one has its rows, as far back as that is plain to see."""
        graph = self._graph
        while True:
            made = graph.nodes.get(node_of(tensor))
            if made is None:
                return tensor
            values = [(read, value_of(graph, read)) for read in graph.inputs(made)]
            varying = [read for read, value in values if value is None]
            # A constant of more than one row would have its rows copied to the output.
            flat = all(
                value is None or value.ndim == 0 or value.size == value.shape[-1] for _, value in values
            )
            if tensor in self._origins:
                tensor = self._origins[tensor]
            elif (
                (made.op == "Reshape" and made.name in self._paths)
                or (made.op in ROWWISE and varying == graph.inputs(made)[:1])
                or (made.op in ELEMENTWISE and len(set(varying)) == 1 and flat)
            ):
                tensor = varying[0]
            else:
                return tensor


def _in_order(graph: Graph) -> Iterable[NodeDef]:
    """Nodes in an order of computation; loops are cut where they come back to where they were."""
    seen: set[str] = set()
    for start in graph.nodes:
        stack = [(start, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                yield graph.nodes[name]
            elif name not in seen and name in graph:
                seen.add(name)
                stack.append((name, True))
                stack.extend((node_of(reference), False) for reference in graph.nodes[name].input)


def in_functions(graph_def: GraphDef) -> list[Op]:
    """Ops of all kinds inside functions that nodes call (loops, conditionals): left alone, and
    listed.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    kinds = {op: kind for kind in KINDS for op in (kind.tf_op, *kind.spellings)}
    found: list[Op] = []
    waiting = [
        (node.name, name) for node in graph_def.node if "Dataset" not in node.op for name in _called(node)
    ]
    seen: set[str] = set()
    while waiting:
        caller, name = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for inner in library[name].node_def:
            if inner.op in kinds:
                reason = f"it is inside a function ({name}) that the graph calls, as loops do, {IN_LOOPS}"
                found.append(
                    Op(
                        f"{caller}/{inner.name}",
                        kinds[inner.op].name,
                        (Scheme.fp32(),),
                        signature=inner.op,
                        note=reason,
                    )
                )
            waiting.extend((f"{caller}/{inner.name}", called) for called in _called(inner))
    return found


def _called(node: NodeDef) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.HasField("func")]
