"""int8 convolutions as float ones on rounded numbers: what an op's own rounding does, and nothing that
another op answers for.

    simulated = Simulated(rewriter, {op: schemes}, ranges)
    simulated(op, scheme, x)                    # the output in that scheme as a tensor of the graph that is
                                                being built

The kernel rounds its output as well. Where convolutions read that, they choose the range: the rounding is
that of their input, and counts for them. It counts for the producer only where somebody else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.apply import Piece
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Op, Plan, Scheme

__all__ = ["Simulated"]


class Simulated:
    """Knows the convolutions of a graph, each in its schemes, as they are where all of them run in the same
    one.
    """

    def __init__(self, rewriter: Rewriter, wanted: Mapping[Op, Sequence[Scheme]], ranges: Ranges) -> None:
        self._rewriter = rewriter
        convs = {
            op: [s for s in schemes if s.dtype == "int8"]
            for op, schemes in wanted.items()
            if op.kind != "matmul"
        }
        self._pieces: dict[tuple[str, Scheme], Piece] = {}
        for scheme in dict.fromkeys(scheme for schemes in convs.values() for scheme in schemes):
            plan = Plan({op.name: scheme for op, schemes in convs.items() if scheme in schemes})
            self._pieces.update(
                {(piece.site.op.name, scheme): piece for piece in rewriter.emit(plan, ranges).pieces}
            )
        self._owners = {op.name for op in convs} - rewriter.passed_on(
            {op.name for op, schemes in convs.items() if schemes}
        )
        self._known: dict[tuple[Any, ...], Any] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._pieces

    def begin(self) -> None:
        """Another graph is built."""
        self._known.clear()

    def __call__(self, op: Op, scheme: Scheme, x: Any) -> Any:
        piece = self._pieces[op.name, scheme]
        bias: Array = np.zeros(piece.site.columns, np.float32) if piece.site.bias is None else piece.site.bias
        y = tf.nn.bias_add(
            self._sums(piece, x), bias if piece.correction is None else bias + piece.correction
        )
        activation = piece.site.plain.activation
        if activation is not None:
            y = tf.nn.relu(y) if activation.name == "Relu" else tf.nn.relu6(y)
        # With an addend, what is rounded is the sum, which the next convolution reads.
        if op.name in self._owners and piece.form.addend is None and isinstance(piece.result, Quantized):
            factors = np.float32(1) if piece.factors is None else piece.factors
            y = _rounded(y * factors, piece.result.grid) / factors
        return y

    def _sums(self, piece: Piece, x: Any) -> Any:
        """The convolution itself; schemes that differ in the bias only share it."""
        name, weight, grid = piece.site.op.name, piece.weight, piece.input_grid
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
            how = self._rewriter.geometry(piece.site)
            conv = tf.raw_ops.Conv2D if piece.site.op.kind == "conv2d" else tf.raw_ops.DepthwiseConv2dNative
            self._known[*which, grid] = conv(
                input=_rounded(x * factors, grid) / factors, filter=filters, data_format="NHWC", **how
            )
        return self._known[*which, grid]


def _rounded(x: Any, grid: Grid | None) -> Any:
    """:meth:`Grid.round_trip`, as part of a graph."""
    if grid is None:
        return x
    return tf.clip_by_value(tf.round(x / grid.scale), grid.least, grid.most) * grid.scale
