"""Ops whose kernels output int8, in float on rounded numbers: what an op's own rounding does, without what is
counted for another op.

    simulated = Simulated(rewriter, {op: schemes}, ranges)
    simulated(op, scheme, x)            # the output in that scheme, in the graph that is being built

Such a kernel (a convolution's) rounds its output as well. Where ops of that sort read it, they choose the
range: the rounding is that of their input, and counts for them. It counts for the producer only where
other ops read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.emission import Piece
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Op, Plan, Scheme

__all__ = ["Simulated"]


class Simulated:
    """Knows such ops of a graph, each in its schemes, as they are where all of them run in the same
    one.
    """

    def __init__(self, rewriter: Rewriter, wanted: Mapping[Op, Sequence[Scheme]], ranges: Ranges) -> None:
        self._rewriter = rewriter
        simulated = {
            op: [s for s in schemes if s.dtype == "int8"]
            for op, schemes in wanted.items()
            if rewriter.outputs_int8(op)
        }
        self._pieces: dict[tuple[str, Scheme], Piece] = {}
        for scheme in dict.fromkeys(scheme for schemes in simulated.values() for scheme in schemes):
            plan = Plan({op.name: scheme for op, schemes in simulated.items() if scheme in schemes})
            self._pieces.update(
                {(piece.fused.op.name, scheme): piece for piece in rewriter.emit(plan, ranges).pieces}
            )
        self._owners = {op.name for op in simulated} - rewriter.passed_on(
            {op.name for op, schemes in simulated.items() if schemes}
        )
        self._known: dict[tuple[Any, ...], Any] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._pieces

    def begin(self) -> None:
        """Another graph is built."""
        self._known.clear()

    def __call__(self, op: Op, scheme: Scheme, x: Any) -> Any:
        piece = self._pieces[op.name, scheme]
        bias: Array = (
            np.zeros(piece.fused.columns, np.float32) if piece.fused.bias is None else piece.fused.bias
        )
        y = tf.nn.bias_add(
            self._sums(piece, x), bias if piece.correction is None else bias + piece.correction
        )
        activation = piece.fused.plain.activation
        if activation is not None:
            y = tf.nn.relu(y) if activation.name == "Relu" else tf.nn.relu6(y)
        # With an addend, what is rounded is the sum, which the next op reads.
        if op.name in self._owners and piece.fusion.addend is None and isinstance(piece.result, Quantized):
            factors = np.float32(1) if piece.factors is None else piece.factors
            y = _rounded(y * factors, piece.result.grid) / factors
        return y

    def _sums(self, piece: Piece, x: Any) -> Any:
        """The op itself; schemes that differ in the bias only share it."""
        name, weight, grid = piece.fused.op.name, piece.weight, piece.input_grid
        if weight is None:
            raise ValueError(f"{name!r} has no int8 weight")
        factors = np.ones(1, np.float32) if piece.multiplier is None else piece.multiplier
        which = (name, id(weight))
        if (*which, grid) not in self._known:
            if which not in self._known:
                # As int8: a graph keeps a constant several times.
                self._known[which] = tf.cast(tf.constant(weight.values), tf.float32) * (
                    weight.scale() * factors[:, None]
                )
            filters = self._known[which]
            self._known[*which, grid] = piece.fused.kind.simulate(
                self._rewriter.core(piece.fused), _rounded(x * factors, grid) / factors, filters
            )
        return self._known[*which, grid]


def _rounded(x: Any, grid: Grid | None) -> Any:
    """:meth:`Grid.round_trip`, as part of a graph."""
    if grid is None:
        return x
    return tf.clip_by_value(tf.round(x / grid.scale), grid.least, grid.most) * grid.scale
