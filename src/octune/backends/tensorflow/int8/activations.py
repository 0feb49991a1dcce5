"""int8 forms of activations, made once for all readers that want a tensor on the same grid.

activations = Activations(graph, reference, shapes)
activations.quantized("x:0", Grid.affine(-1.0, 3.0))
# -> Quantized: names of the int8 values and of the ends of their range
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from octune.backends.tensorflow.clean.layernorm import LAYERNORM
from octune.backends.tensorflow.graph.emit import array_of, constant, node, quantize
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.backends.tensorflow.int8.readers import SmoothingGroup
from octune.int8 import Grid

__all__ = ["Activations", "Quantized", "plain_type", "stored_type"]


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor in int8: the values, the ends of its range (tensors), and its grid (None if that is found at
    run time).
    """

    values: str
    low: str
    high: str
    grid: Grid | None
    rows: bool  # already [rows, columns]


class Activations:
    """Adds nodes to ``graph``; ``reference`` is the graph as it was."""

    def __init__(self, graph: Graph, reference: Graph, shapes: Shapes) -> None:
        self._graph, self._reference, self._shapes = graph, reference, shapes
        self._known: dict[tuple[str, object], Quantized] = {}
        self._smooth: dict[tuple[str, bytes], tuple[Quantized, str | Quantized]] = {}
        self._views: dict[str, str] = {}
        self._passed: dict[tuple[str, str], Quantized] = {}

    # -- what there is ---------------------------------------------------------------------------------------

    def provide(self, tensor: str, made: Quantized) -> None:
        """An op outputs this tensor in int8 itself."""
        self._known[tensor, made.grid] = made

    def provide_smoothed(
        self, tensor: str, group: SmoothingGroup, made: Quantized, source: Quantized
    ) -> None:
        """An op outputs this tensor smoothed for a group, made from the int8 tensor ``source``."""
        self._smooth[tensor, group.multiplier.tobytes()] = made, source

    def provided(self, tensor: str, wanted: Grid) -> Quantized | None:
        """The int8 form of a tensor on that grid, if there is one."""
        return self._known.get((tensor, wanted))

    def from_zero(self, tensor: str) -> Quantized | None:
        """The int8 form of a tensor that is never negative, if there is one."""
        forms = (made for (name, _), made in self._known.items() if name == tensor and made.grid is not None)
        return next(
            (made for made in forms if made.grid and made.grid.zero_point == 0 and not made.grid.signed), None
        )

    # -- what is made ----------------------------------------------------------------------------------------

    def quantized(self, x: str, wanted: Grid) -> Quantized:
        """The int8 form of a float tensor."""
        if (x, wanted) not in self._known:
            name = self._graph.fresh(f"{node_of(x)}/quantize")
            low, high = self.constant(f"{name}/low", wanted.low), self.constant(f"{name}/high", wanted.high)
            ends = low, high
            if wanted.signed:
                # oneDNN spreads all 256 levels over the range when it quantizes, and 255 when it computes.
                reach = 127.5 * wanted.scale
                ends = self.constant(f"{name}/from", -reach), self.constant(f"{name}/to", reach)
            self._graph.add(quantize(name, x, *ends, signed=wanted.signed))
            self._known[x, wanted] = Quantized(f"{name}:0", low, high, wanted, self.is_matrix(x))
        return self._known[x, wanted]

    def dynamic(self, fused: FusedOp) -> Quantized:
        """The input of a matmul in the range that it has at run time."""
        if (fused.x, "dynamic") not in self._known:
            base = self._graph.fresh(f"{node_of(fused.x)}/dynamic")
            x = fused.x if self.is_matrix(fused.x) else self.rows(fused.x, fused.inner, tf.float32, base)
            axes = self.constant(f"{base}/axes", [0, 1])
            for which in ("Min", "Max"):
                self._graph.add(
                    node(f"{base}/{which}", which, [x, axes], T=tf.float32, Tidx=tf.int32, keep_dims=False)
                )
            self._graph.add(quantize(base, x, f"{base}/Min", f"{base}/Max"))
            self._known[fused.x, "dynamic"] = Quantized(
                f"{base}:0", f"{base}:1", f"{base}:2", None, rows=True
            )
        return self._known[fused.x, "dynamic"]

    def smoothed(self, group: SmoothingGroup) -> tuple[Quantized, str | Quantized]:
        """The smoothed input of ops that read one tensor, and what it is made from, which may be smoothed
        already.
        """
        fused = group.fused_ops[0]
        key = (fused.x, group.multiplier.tobytes())
        if key not in self._smooth:
            source = self._smoothed_layernorm(group)
            if source is None:
                name = self._graph.fresh(f"{node_of(fused.x)}/smooth")
                fits = (self._shapes[fused.x] or (None,))[-1] == fused.inner
                x = fused.x if fits else self.rows(fused.x, fused.inner, tf.float32, name)
                self.scaled(name, x, group.multiplier)
                made = self.quantized(f"{name}:0", group.grid)
            else:
                made = self.quantized(source, group.grid)
            self._smooth[key] = replace(made, rows=self.is_matrix(fused.x)), source or fused.x
        return self._smooth[key]

    def pooled(self, pool: str, made: Quantized) -> Quantized:
        """A pooling of int8 values. Order is the same for the integers as for what they stand for, and so are
        averages of those from zero on, but for their rounding.
        """
        if (pool, made.values) not in self._passed:
            op, name = self._reference.nodes[pool], self._graph.fresh(f"{pool}/int8")
            stored, plain = stored_type(made.grid), plain_type(made.grid)
            how: dict[str, Any] = {
                key: [int(i) for i in attribute(op, key).list.i] for key in ("ksize", "strides")
            }
            how |= {"padding": attribute(op, "padding").s.decode()}
            if op.op == "AvgPool":
                inputs = [made.values, made.low, made.high]
                self._graph.add(node(name, "QuantizedAvgPool", inputs, T=stored, **how))
            else:  # MaxPool knows these types only by their plain names
                how |= {"data_format": "NHWC"}
                self._graph.add(node(f"{name}/values", "Bitcast", [made.values], T=stored, type=plain))
                self._graph.add(node(f"{name}/max", "MaxPool", [f"{name}/values"], T=plain, **how))
                self._graph.add(node(name, "Bitcast", [f"{name}/max"], T=plain, type=stored))
            self._passed[pool, made.values] = replace(made, values=f"{name}:0")
        return self._passed[pool, made.values]

    def joined(self, concatenation: str, parts: Sequence[Quantized]) -> Quantized:
        """A concatenation of int8 values, all on one grid."""
        name = self._graph.fresh(f"{concatenation}/int8")
        stored, op = stored_type(parts[0].grid), self._reference.nodes[concatenation]
        inputs = [*(part.values for part in parts), op.input[-1]]
        index = tf.as_dtype(attribute(op, "Tidx").type or tf.int32)
        self._graph.add(node(name, "ConcatV2", inputs, N=len(parts), T=stored, Tidx=index))
        return replace(parts[0], values=f"{name}:0", rows=False)

    def scaled(self, name: str, x: str, factors: Array) -> None:
        """A node of that name, which multiplies every channel."""
        self._graph.add(node(name, "Mul", [x, self.constant(f"{name}/multiplier", factors)], T=tf.float32))

    def _smoothed_layernorm(self, group: SmoothingGroup) -> str | None:
        """The layer normalisation before some ops with the smoothing in its gamma and beta, if no other op
        reads it.
        """
        fused_ops = group.fused_ops
        made = self._reference.maker(fused_ops[0].x)
        through = {name for fused in fused_ops for name in (*fused.path, fused.core)}
        nodes = [made.name, *(name for fused in fused_ops for name in fused.path)]
        if made.op != LAYERNORM or any(
            not self._reference.is_private(name) or not set(self._reference.followers(name)) <= through
            for name in nodes
        ):
            return None
        values = [self._reference.maker(reference) for reference in made.input[1:]]
        names = [
            self.constant(f"{value.name}/smooth", array_of(value) * group.multiplier) for value in values
        ]
        name = self._graph.fresh(f"{made.name}/smooth")
        self._graph.add(
            node(name, LAYERNORM, [made.input[0], *names], T=tf.float32, epsilon=attribute(made, "epsilon").f)
        )
        return f"{name}:0"

    # -- small things ----------------------------------------------------------------------------------------

    def constant(self, name: str, value: Array | float | list[int], dtype: tf.DType | None = None) -> str:
        """A new Const."""
        name = self._graph.fresh(name)
        self._graph.add(constant(name, value, dtype))
        return name

    def rows(self, tensor: str, columns: int, dtype: tf.DType, name: str) -> str:
        """A tensor as [rows, columns]."""
        name = self._graph.fresh(f"{name}/rows")
        self._graph.add(
            node(
                name,
                "Reshape",
                [tensor, self.constant(f"{name}/shape", [-1, columns])],
                T=dtype,
                Tshape=tf.int32,
            )
        )
        return name

    def matrix(self, made: Quantized, columns: int) -> str:
        """int8 values as [rows, columns], reshaped once for all readers."""
        if made.rows:
            return made.values
        if made.values not in self._views:
            self._views[made.values] = self.rows(made.values, columns, tf.quint8, node_of(made.values))
        return self._views[made.values]

    def is_matrix(self, tensor: str) -> bool:
        """Whether a tensor of the reference has two axes."""
        return len(self._shapes[tensor] or ()) == 2


def stored_type(grid: Grid | None) -> tf.DType:
    """The type of int8 values on a grid, as int8 kernels call it."""
    return tf.qint8 if grid is not None and grid.signed else tf.quint8


def plain_type(grid: Grid | None) -> tf.DType:
    """The same as other kernels call it."""
    return tf.int8 if grid is not None and grid.signed else tf.uint8
