"""A plan becomes nodes: every op of the plan is replaced in a copy of the reference graph.

    emission = emit(reference, fused_ops, shapes, weights, plan, ranges)
    emission.graph                      # the graph under the plan
    emission.pieces                     # what was replaced, for checking it piece by piece

Ops come in the order of computation, so what an op reads exists when it is its turn. Where all readers of an
op's output want it in int8 and on one grid, the op produces just that. How an op is computed is known to its
kind; what kinds share is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.emit import node
from octune.backends.tensorflow.graph.graph import Array, Graph, node_of
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.int8.activations import Activations, Quantized
from octune.backends.tensorflow.int8.fused_op import FusedOp, Fusion
from octune.backends.tensorflow.int8.passages import concatenation_before, joined, pool_before
from octune.backends.tensorflow.int8.ranges import activation_grid, stats_of
from octune.backends.tensorflow.int8.readers import Readers
from octune.backends.tensorflow.int8.weights import Int8Weight, Weights
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Plan, Scheme
from octune.repair import repairs_of

__all__ = ["Emission", "Numbers", "Piece", "emit"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What an int8 kernel computes with: int8 weights with their outputs last, a float bias, and the largest
    absolute weight of every output, or one for all.
    """

    values: Array
    bias: Array
    reach: Array

    def part(self, number: int, count: int) -> Numbers:
        """One of this many groups of outputs."""
        outputs = np.split(np.arange(self.bias.size), count)[number]
        reach = self.reach if self.reach.ndim == 0 else self.reach[outputs]
        return Numbers(np.ascontiguousarray(self.values[..., outputs]), self.bias[outputs], reach)

    def spread(self, values: Array) -> Numbers:
        """Other weights, which have all outputs once or several times."""
        times = values.shape[-1] // self.bias.size
        reach = self.reach if self.reach.ndim == 0 else np.tile(self.reach, times)
        return Numbers(np.ascontiguousarray(values), np.tile(self.bias, times), reach)


@dataclass(frozen=True, slots=True)
class Piece:
    """One replaced op: what it reads and outputs in the new graph, and what these stand for in the
    reference.
    """

    fused: FusedOp
    scheme: Scheme
    fusion: Fusion
    source: str | Quantized  # a float tensor, or int8 values that another piece makes
    result: str | Quantized
    weight: Int8Weight | None = None
    multiplier: Array | None = None  # smoothing: what the reference's input is multiplied by
    x: Quantized | None = None  # what the int8 op reads
    addend: Quantized | None = None
    correction: Array | None = None  # what was added to the bias
    factors: Array | None = None  # what the output channels are multiplied by
    pool: str | None = None  # the pooling between the source and the op

    @property
    def input_grid(self) -> Grid | None:
        """The grid that calibration has found for what the op reads."""
        return None if self.x is None else self.x.grid

    @property
    def premultiplied(self) -> bool:
        """Whether the source holds the smoothed input already."""
        return self.multiplier is not None and self.source != self.fused.x

    def origin(self, reference: Graph) -> str:
        """The tensor of the reference that the source stands for."""
        if self.pool:
            return reference.inputs(reference.nodes[self.pool])[0]
        return self.fused.x if self.scheme.dtype == "int8" else str(self.source)


def emit(
    reference: Graph,
    fused_ops: Mapping[str, FusedOp],
    shapes: Shapes,
    weights: Weights,
    plan: Plan,
    ranges: Ranges,
) -> Emission:
    """The reference under a plan, with a record of what was replaced."""
    schemes = {name: scheme for name, scheme in plan.items() if scheme.dtype != "fp32"}
    planned = [fused for name, fused in fused_ops.items() if name in schemes]
    readers = Readers(reference, planned, schemes, ranges)
    emission = Emission(reference, shapes, weights, ranges, readers)
    for fused in planned:
        scheme = schemes[fused.op.name]
        if scheme.dtype == "bf16":
            emission.bf16(fused, scheme)
        else:
            fused.kind.emit(emission, fused, scheme)
    gone = [
        name
        for fused in planned
        for name in (*fused.path, *fused.plain.members, *(fused.summed.members if fused.summed else ()))
    ]
    emission.graph.sweep([*gone, *(node_of(read) for name in gone for read in reference.nodes[name].input)])
    return emission


class Emission:
    """The graph while it is built, and what all kinds of ops need for that."""

    def __init__(
        self, reference: Graph, shapes: Shapes, weights: Weights, ranges: Ranges, readers: Readers
    ) -> None:
        self.reference, self.ranges, self.readers, self._weights = reference, ranges, readers, weights
        self.shapes = shapes
        self.graph = reference.copy()
        self.pieces: list[Piece] = []
        self.activations = Activations(self.graph, reference, shapes)
        self._halves: dict[str, str] = {}
        self._passed: set[str] = set()  # int8 tensors behind poolings and concatenations

    def input(self, fused: FusedOp, scheme: Scheme) -> tuple[Quantized, str | Quantized, Array | None]:
        """An op's input in int8; what it is made from (float, or the int8 output of another op); and what its
        channels are multiplied by.
        """
        group = self.readers.smoothing(fused)
        if group is not None:
            return *self.activations.smoothed(group), group.multiplier
        if scheme.mode == "dynamic":
            return self.activations.dynamic(fused), fused.x, None
        return *self._static(fused, activation_grid(fused, scheme, self.ranges)), None

    def _static(self, fused: FusedOp, wanted: Grid) -> tuple[Quantized, str | Quantized]:
        pool = pool_before(self.reference, fused.x)
        source = self.reference.inputs(self.reference.nodes[pool])[0] if pool else fused.x
        if wanted.signed and pool and self.reference.nodes[pool].op == "AvgPool":
            source = fused.x  # its kernel takes no signed integers
        before = self._flowing(source, wanted)
        if before is None:
            return self.activations.quantized(fused.x, wanted), fused.x
        if pool is None or source == fused.x:
            return before, before
        made = self.activations.pooled(pool, before)
        self.activations.provide(fused.x, made)
        return made, before

    def _flowing(self, tensor: str, wanted: Grid) -> Quantized | None:
        """The int8 form of a tensor on that grid where other ops make it: by themselves, or through poolings
        and concatenations.
        """
        made = self.activations.provided(tensor, wanted)
        if made is not None and (
            made.values in self._passed or any(piece.result == made for piece in self.pieces)
        ):
            return made
        made = self._pooled(tensor, wanted) or self._joined(tensor, wanted)
        if made is not None:
            self._passed.add(made.values)
            self.activations.provide(tensor, made)
        return made

    def _pooled(self, tensor: str, wanted: Grid) -> Quantized | None:
        pool = pool_before(self.reference, tensor)
        if pool is None or self.reference.nodes[pool].op == "AvgPool":
            return None
        before = self._flowing(self.reference.inputs(self.reference.nodes[pool])[0], wanted)
        return None if before is None else self.activations.pooled(pool, before)

    def _joined(self, tensor: str, wanted: Grid) -> Quantized | None:
        """With what is not at hand in int8 quantized: one of them in int8 is less to convert."""
        concatenation = concatenation_before(self.reference, tensor)
        if concatenation is None:
            return None
        parts = {part: self._flowing(part, wanted) for part in joined(self.reference, concatenation)}
        if all(made is None for made in parts.values()):
            return None
        whole = [
            parts[part] or self.activations.quantized(part, wanted)
            for part in joined(self.reference, concatenation)
        ]
        return self.activations.joined(concatenation, whole)

    def ends(self, name: str, grid: Grid) -> tuple[str, str]:
        """The ends of a grid, as constants."""
        make = self.activations.constant
        return make(f"{name}/low", grid.low), make(f"{name}/high", grid.high)

    def weight(
        self, fused: FusedOp, scheme: Scheme, x: Quantized, multiplier: Array | None
    ) -> tuple[Int8Weight, Array | None]:
        """The int8 weight that meets ``x``, and what its bias is corrected by."""
        signed = x.grid is not None and x.grid.signed
        weight = self._weights.int8(fused, scheme, multiplier, signed=signed)
        if not repairs_of(scheme).corrects_bias:
            return weight, None
        stats = stats_of(fused, scheme, self.ranges)
        return weight, self._weights.correction(fused, scheme, stats, multiplier, signed=signed)

    def numbers(
        self, fused: FusedOp, weight: Int8Weight, correction: Array | None, factors: Array | None = None
    ) -> Numbers:
        """int8 weight, bias and reach of an op. ``factors`` multiply the output channels."""
        scale = np.float32(1) if factors is None else factors
        bias = (np.zeros(fused.columns, np.float32) if fused.bias is None else fused.bias) + (
            0 if correction is None else correction
        )
        return Numbers(
            weight.values, np.asarray(bias * scale, np.float32), np.asarray(weight.reach * scale, np.float32)
        )

    def parameters(self, name: str, numbers: Numbers) -> tuple[str, str, str, str]:
        """int8 weight, bias, and the ends of the weight's range, as constants with this beginning."""
        make = self.activations.constant
        return (
            make(f"{name}/int8_weight", numbers.values, tf.qint8),
            make(f"{name}/bias", numbers.bias),
            make(f"{name}/weight_low", -numbers.reach),
            make(f"{name}/weight_high", numbers.reach),
        )

    def bf16(self, fused: FusedOp, scheme: Scheme) -> None:
        """Only the op itself in bfloat16: cast, compute, cast back."""
        core = self.reference.nodes[fused.core]
        x = self.reference.inputs(core)[fused.kind.operand]
        if x not in self._halves:
            name = self.graph.fresh(f"{node_of(x)}/bf16")
            self.graph.add(node(name, "Cast", [x], SrcT=tf.float32, DstT=tf.bfloat16, Truncate=False))
            self._halves[x] = name
        weight = self.graph.fresh(f"{fused.core}/bf16_weight")
        self.graph.add(self._weights.bf16(fused, weight))
        name = self.graph.fresh(f"{fused.core}/bf16")
        for made in fused.kind.float_nodes(name, core, [self._halves[x], weight], tf.bfloat16):
            self.graph.add(made)
        self.graph.add(node(fused.core, "Cast", [name], SrcT=tf.bfloat16, DstT=tf.float32, Truncate=False))
        fusion = Fusion((fused.core,))
        self.pieces.append(Piece(fused, scheme, fusion, x, fusion.output))
