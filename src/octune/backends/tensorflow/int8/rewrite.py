"""GraphDef in, int8 GraphDef out.

rewriter = Rewriter(frozen)
rewriter.ops()                              # what could be quantized
rewriter.taps()                             # what calibration must fetch from rewriter.reference
rewriter.rewrite(plan, ranges)              # -> GraphDef, in seconds, with the same tensor names
"""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.batches import Inputs
from octune.backends.tensorflow.clean.dense import normalise
from octune.backends.tensorflow.clean.fold import fold, frames
from octune.backends.tensorflow.clean.layernorm import fuse_layernorms
from octune.backends.tensorflow.graph.graph import Array, FrozenGraph, Graph, Tap
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.graph.weightless import Weightless, without_weights
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.emission import Emission, Piece, emit
from octune.backends.tensorflow.int8.find import find, in_functions
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.backends.tensorflow.int8.passages import only_read_by
from octune.backends.tensorflow.int8.ranges import AVERAGED
from octune.backends.tensorflow.int8.streams import in_streams
from octune.backends.tensorflow.int8.support import Support, support
from octune.backends.tensorflow.int8.weights import Weights
from octune.backends.tensorflow.probe.alone import INPUT, alone
from octune.backends.tensorflow.probe.work import counted
from octune.backends.terms import OUTPUT
from octune.calibration import Ranges
from octune.coverage import Work
from octune.int8 import Limit
from octune.plan import Op, Plan, Scheme
from octune.repair import repairs_of

__all__ = ["Rewriter"]


class Rewriter:
    """Looks at a frozen graph once; then any number of plans can be applied to it."""

    def __init__(self, frozen: FrozenGraph, able: Support | None = None, limit: Limit = Limit.PAIRS) -> None:
        able = able or support()
        self._frozen, self._able, self._limit = frozen, able, limit
        self._graph = Graph.of(frozen)
        fold(self._graph, frozen.graph_def)
        inside = self._inside = frames(self._graph)
        shapes = Shapes(self._graph, frozen.graph_def)
        normalised = normalise(self._graph, shapes, inside)
        self._matmuls = normalised.matmuls
        if able.layernorm:
            fuse_layernorms(self._graph, shapes, inside)
        self._shapes = Shapes(self._graph, frozen.graph_def)
        found = find(self._graph, self._shapes, able, normalised, inside)
        self._fused_ops = found.fused_ops
        self._ops = (*found.ops(), *in_functions(frozen.graph_def))
        self._weights = Weights(self._graph, limit)
        self._last: tuple[str, Rewriter, str] | None = None

    def ops(self) -> tuple[Op, ...]:
        """All ops that could be quantized, in the order of computation, and those that cannot, with the
        reason.
        """
        return self._ops

    def work(self, inputs: Inputs) -> Work:
        """What fp32 computes for a batch."""
        names = {self._matmuls.get(op.name, op.name): op.name for op in self._ops}
        return counted(self._graph, self._frozen.graph_def, names, self._inside, inputs)

    def taps(self) -> dict[str, Tap]:
        """What calibration must fetch: an op's name stands for its input, ``name + OUTPUT`` for the
        output of an op whose kernel rounds that, ``name + AVERAGED`` for what an average pooling before
        an op averages.
        """
        found: dict[str, Tap] = {}
        for name, fused in self._fused_ops.items():
            found[name] = Tap(fused.x)
            if fused.kind.outputs_int8:
                found[name + OUTPUT] = Tap(fused.plain.output)
            if fused.averaged is not None:
                found[name + AVERAGED] = Tap(fused.averaged)
        return found

    def outputs(self) -> dict[str, str]:
        """The tensor of the reference graph that each op by itself (see :meth:`alone`) computes: behind its
        bias and its activation.
        """
        return {name: fused.plain.output for name, fused in self._fused_ops.items()}

    @property
    def reference(self) -> GraphDef:
        """The cleaned fp32 graph that taps refer to; made when it is asked for, because it is a copy of all
        weights.
        """
        return self._graph_def(self._graph)

    @cached_property
    def weightless(self) -> Weightless:
        """The same with its weights apart: for everything that runs it."""
        return without_weights(self._graph, self._frozen.graph_def)

    def rewrite(self, plan: Plan, ranges: Ranges) -> GraphDef:
        """The graph under a plan; ops that the plan does not name stay fp32. Never runs data."""
        return self.graph_def(self.emit(plan, ranges))

    def in_streams(
        self, plan: Plan, ranges: Ranges, *counts: int, own_threads: bool = False
    ) -> GraphDef | None:
        """The same in parts that run side by side, in the first number of them that divides anything; None if
        nothing can be split.
        """
        graph = self.emit(plan, ranges).graph
        tried = (in_streams(graph, self._shapes, count, own_threads=own_threads) for count in counts)
        made = next((each for each in tried if each is not None), None)
        return None if made is None else self._graph_def(made)

    def graph_def(self, emission: Emission) -> GraphDef:
        """What :meth:`emit` made, as a GraphDef."""
        return self._graph_def(emission.graph)

    def as_stored(self, fused: FusedOp, weight: Array) -> Array:
        """A weight of an op in the layout that the reference has."""
        return fused.kind.oriented(self.core(fused), weight)

    def origin(self, piece: Piece) -> str:
        """The tensor of the reference that a piece's source stands for."""
        return piece.origin(self._graph)

    def core(self, fused: FusedOp) -> NodeDef:
        """The node of the reference that computes the op itself."""
        return self._graph.nodes[fused.core]

    def outputs_int8(self, op: Op) -> bool:
        """Whether the kernel of an op outputs int8 only."""
        return op.name in self._fused_ops and self._fused_ops[op.name].kind.outputs_int8

    def passed_on(self, ops: Container[str]) -> set[str]:
        """The ops whose kernels output int8 that is read only by these ones."""
        cores = {fused.core for name, fused in self._fused_ops.items() if name in ops}
        return {
            name
            for name, fused in self._fused_ops.items()
            if fused.kind.outputs_int8 and only_read_by(self._graph, fused.plain.tail, cores)
        }

    def emit(self, plan: Plan, ranges: Ranges) -> Emission:
        """The graph under a plan with a record of what was replaced."""
        plan.check(self._ops)
        return emit(self._graph, self._fused_ops, self._shapes, self._weights, plan, ranges)

    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> tuple[GraphDef, str, str]:
        """That op in that scheme, with its bias and activation and nothing else: (graph, input tensor, output
        tensor).
        """
        inner, output = self._by_itself(op.name)
        return inner.rewrite(Plan({op.name: scheme}), _of(op, ranges)), INPUT, output

    def in_place(self, op: Op, scheme: Scheme, ranges: Ranges) -> tuple[GraphDef, str, str]:
        """The same for timing: an op between others may take and output int8, without a float in
        between.
        """
        fused = self._fused_ops[op.name]
        if not fused.kind.outputs_int8 or scheme.dtype != "int8":
            return self.alone(op, scheme, ranges)
        inner, output = self._by_itself(op.name)
        emission = inner.emit(Plan({op.name: scheme}), _of(op, ranges))
        piece = emission.pieces[0]
        fed = piece.x.values if fused.receives and piece.x is not None else INPUT
        fetched = piece.result.values if isinstance(piece.result, Quantized) and fused.passes_on else output
        return inner.graph_def(emission), fed, fetched

    def correction(self, op: Op, scheme: Scheme, ranges: Ranges) -> Array | None:
        """What is added to the bias of that op in that scheme, where it is linear: what comes out is that
        much more.
        """
        if not repairs_of(scheme).corrects_bias or self._fused_ops[op.name].plain.activation is not None:
            return None
        inner, _ = self._by_itself(op.name)
        return inner.emit(Plan({op.name: scheme}), _of(op, ranges)).pieces[0].correction

    def _by_itself(self, name: str) -> tuple[Rewriter, str]:
        # one op is asked for in all its schemes, and then the next
        if self._last is None or self._last[0] != name:
            part, output = alone(self._fused_ops[name], self._graph, self._shapes)
            part.versions.CopyFrom(self._frozen.graph_def.versions)
            self._last = (
                name,
                Rewriter(FrozenGraph(part, {"x": INPUT}, {"y": output}), self._able, self._limit),
                output,
            )
        return self._last[1], self._last[2]

    def _graph_def(self, graph: Graph) -> GraphDef:
        made = GraphDef(versions=self._frozen.graph_def.versions, library=self._frozen.graph_def.library)
        made.node.extend(graph)
        return made


def _of(op: Op, ranges: Ranges) -> Ranges:
    return Ranges(
        {name: ranges[name] for name in (op.name, op.name + OUTPUT, op.name + AVERAGED) if name in ranges},
        ranges.samples,
    )
