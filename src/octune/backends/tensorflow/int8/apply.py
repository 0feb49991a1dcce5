"""A plan becomes nodes: every op of the plan is replaced in a copy of the reference graph.

    emission = Emission(reference, sites, shapes, weights, plan, ranges)
    emission.graph                      # the graph under the plan
    emission.pieces                     # what was replaced, for checking it piece by piece (see verify)

Sites come in the order of computation, so whatever an op reads is there when it is its turn. Where all
readers of an op's output want it in int8 and on one grid, the op produces just that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.emit import node, quantized_conv, quantized_matmul
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.graph.shapes import Shapes
from octune.backends.tensorflow.int8.activations import Activations, Quantized
from octune.backends.tensorflow.int8.outputs import Outputs, is_pool
from octune.backends.tensorflow.int8.ranges import activation_grid, stats_of
from octune.backends.tensorflow.int8.site import KERNELS, Form, Site, geometry
from octune.backends.tensorflow.int8.wants import Wants
from octune.backends.tensorflow.int8.weights import Int8Weight, Weights
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Plan, Scheme
from octune.repair import repairs_of

__all__ = ["Emission", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One replaced op: what it reads and gives in the new graph, and what these stand for in the
    reference.
    """

    site: Site
    scheme: Scheme
    form: Form
    source: str | Quantized  # a float tensor, or int8 values that another piece makes
    result: str | Quantized
    weight: Int8Weight | None = None
    multiplier: Array | None = None  # smoothing: what the reference's input is multiplied by
    input_grid: Grid | None = None
    premultiplied: bool = False  # the source holds the smoothed input already
    addend: Quantized | None = None
    correction: Array | None = None  # what was added to the bias
    factors: Array | None = None  # what the output channels are multiplied by
    pool: str | None = None  # the max pooling between the source and the op

    def origin(self, reference: Graph) -> str:
        """The tensor of the reference that the source stands for."""
        if self.pool:
            return reference.inputs(reference.nodes[self.pool])[0]
        return self.site.x if self.scheme.dtype == "int8" else str(self.source)


class Emission:
    """Does its work when it is made."""

    def __init__(
        self,
        reference: Graph,
        sites: Mapping[str, Site],
        shapes: Shapes,
        weights: Weights,
        plan: Plan,
        ranges: Ranges,
    ) -> None:
        self._reference, self._weights, self._ranges = reference, weights, ranges
        self.graph = reference.copy()
        self.pieces: list[Piece] = []
        self._activations = Activations(self.graph, reference, shapes)
        self._plan = {name: scheme for name, scheme in plan.items() if scheme.dtype != "fp32"}
        self._sites = [site for name, site in sites.items() if name in self._plan]
        self._wants = Wants(reference, self._sites, self._plan, ranges)
        self._outputs = Outputs(reference, self._wants, self._activations, ranges)
        self._halves: dict[str, str] = {}
        for site in self._sites:
            scheme = self._plan[site.op.name]
            if scheme.dtype == "bf16":
                self._bf16(site, scheme)
            elif site.is_conv:
                self._conv(site, scheme)
            else:
                self._dense(site, scheme)
        gone = [
            name
            for site in self._sites
            for name in (*site.path, *site.plain.members, *(site.summed.members if site.summed else ()))
        ]
        self.graph.sweep([*gone, *(node_of(read) for name in gone for read in reference.nodes[name].input)])

    # -- what is wanted --------------------------------------------------------------------------------------

    def _chain(self, form: Form) -> Grid | None:
        """The grid on which all readers of a matmul want its output, if it is one and they are int8
        matmuls.
        """
        if not self._reference.is_private(form.tail):
            return None
        readers = self._wants.readers(form.output, conv=False)
        wanted = {self._wants.static(site) for site in readers}
        through = {name for site in readers for name in (*site.path, site.core)}
        waiting = [form.tail]
        while waiting:
            for follower in self._reference.followers(waiting.pop()):
                if self._reference.nodes[follower].op == "Shape":
                    continue  # asks for sizes, which int8 has as well
                if follower not in through:
                    return None
                if self._reference.nodes[follower].op == "Reshape":
                    if not self._reference.is_private(follower):
                        return None
                    waiting.append(follower)
        return wanted.pop() if len(wanted) == 1 else None

    def _weight(
        self, site: Site, scheme: Scheme, x: Quantized, multiplier: Array | None
    ) -> tuple[Int8Weight, Array | None]:
        """The int8 weight that meets ``x``, and what its bias is corrected by."""
        signed = x.grid is not None and x.grid.signed
        weight = self._weights.int8(site, scheme, multiplier, signed=signed)
        if not repairs_of(scheme).corrects_bias:
            return weight, None
        stats = stats_of(site, scheme, self._ranges)
        return weight, self._weights.correction(site, scheme, stats, multiplier, signed=signed)

    def _parameters(
        self, site: Site, weight: Int8Weight, correction: Array | None, factors: Array | None = None
    ) -> tuple[str, str, str, str]:
        """int8 weight, bias, and the ends of the weight's range, as constants. ``factors`` multiply the
        output channels.
        """
        make, scale = self._activations.constant, np.float32(1) if factors is None else factors
        bias = (np.zeros(site.columns, np.float32) if site.bias is None else site.bias) + (
            0 if correction is None else correction
        )
        reach = weight.reach * scale
        ends = [
            make(f"{site.core}/weight_{end}", np.asarray(sign * reach, np.float32))
            for end, sign in (("low", -1), ("high", 1))
        ]
        bias = np.asarray(bias * scale, np.float32)
        return (
            make(f"{site.core}/int8_weight", weight.values, tf.qint8),
            make(f"{site.core}/bias", bias),
            ends[0],
            ends[1],
        )

    # -- matmuls ---------------------------------------------------------------------------------------------

    def _dense(self, site: Site, scheme: Scheme) -> None:
        activations = self._activations
        multiplier: Array | None = None
        source: str | Quantized = site.x
        group = self._wants.smoothing(site)
        if group is not None:
            multiplier = group.multiplier
            x, source = activations.smoothed(group)
        elif scheme.mode == "dynamic":
            x = activations.dynamic(site)
        else:
            x, source = self._input(site, activation_grid(site, scheme, self._ranges))
        form = site.summed or site.plain
        weight, correction = self._weight(site, scheme, x, multiplier)
        kernel, bias, low, high = self._parameters(site, weight, correction)
        values = activations.matrix(x, activations.inner(site))
        output = self._chain(form) if form.addend is None else None
        lifted = site.lift is not None and site.lift in form.members
        name = form.tail if output is None and not lifted else self.graph.fresh(f"{form.tail}/int8")
        ends = self._ends(name, output) if output else None
        self.graph.add(
            quantized_matmul(
                name,
                (values, kernel, bias),
                (x.low, x.high, low, high),
                activation=form.activation.name if form.activation else None,
                alpha=form.activation.alpha if form.activation else 0.2,
                addend=self._addend(site, form, values) if form.addend else None,
                output=ends,
            )
        )
        result: str | Quantized = form.output
        if output is not None and ends is not None:
            result = Quantized(f"{name}:0", *ends, output, rows=True)
            activations.provide(form.output, result)
            self._sizes(site, form, result, lifted=lifted)
        elif lifted:
            self._lift(site, form.tail, name, tf.float32)
        premultiplied = multiplier is not None and source != site.x
        self.pieces.append(
            Piece(
                site,
                scheme,
                form,
                source,
                result,
                weight,
                multiplier,
                x.grid,
                premultiplied,
                correction=correction,
            )
        )

    def _input(self, site: Site, wanted: Grid) -> tuple[Quantized, str | Quantized]:
        """A site's input in int8, and what it is made from: float, or the int8 output of another op."""
        made = self._activations.provided(site.x, wanted)
        if made is not None and any(piece.result == made for piece in self.pieces):
            return made, made
        pool = self._pool(site)
        before = (
            self._activations.provided(self._reference.inputs(self._reference.nodes[pool])[0], wanted)
            if pool
            else None
        )
        if pool and before is not None and any(piece.result == before for piece in self.pieces):
            made = self._activations.pooled(pool, before)
            self._activations.provide(site.x, made)
            return made, before
        return self._activations.quantized(site.x, wanted), site.x

    def _ends(self, name: str, grid: Grid) -> tuple[str, str]:
        return self._activations.constant(f"{name}/low", grid.low), self._activations.constant(
            f"{name}/high", grid.high
        )

    def _lift(self, site: Site, name: str, rows: str, dtype: tf.DType) -> None:
        """The Reshape behind a matmul, on another tensor."""
        lift = self._reference.nodes[str(site.lift)]
        self.graph.add(
            node(
                name,
                "Reshape",
                [rows, lift.input[1]],
                T=dtype,
                Tshape=tf.as_dtype(attribute(lift, "Tshape").type),
            )
        )

    def _sizes(self, site: Site, form: Form, made: Quantized, *, lifted: bool) -> None:
        """Those who ask for the shape of an output that is now int8 only (tensordot does) get it from
        there.
        """
        asking = [
            name
            for name, _ in self._reference.readers(form.output)
            if self._reference.nodes[name].op == "Shape"
        ]
        view = made.values
        if asking and lifted:
            view = self.graph.fresh(f"{form.tail}/view")
            self._lift(site, view, made.values, tf.quint8)
        for name in asking:
            kind = tf.as_dtype(attribute(self._reference.nodes[name], "out_type").type)
            self.graph.add(node(name, "Shape", [view], T=tf.quint8, out_type=kind))

    def _addend(self, site: Site, form: Form, values: str) -> str:
        """The addend as rows. Where its shape is not proven to fit, a Reshape to the very shape of the output
        raises if it does not.
        """
        addend, activations = str(form.addend), self._activations
        if not form.guarded:
            fits = activations.is_matrix(addend)
            return (
                addend if fits else activations.rows(addend, site.columns, tf.float32, f"{site.core}/addend")
            )
        name = self.graph.fresh(f"{site.core}/addend")
        shape = f"{name}/shape"
        self.graph.add(node(shape, "Shape", [values], T=tf.quint8, out_type=tf.int32))
        if activations.inner(site) != site.columns:
            ends = [
                activations.constant(f"{name}/{part}", [value])
                for part, value in (("begin", 0), ("end", 1), ("step", 1))
            ]
            masks = dict.fromkeys(
                ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
            )
            self.graph.add(
                node(f"{name}/count", "StridedSlice", [shape, *ends], T=tf.int32, Index=tf.int32, **masks)
            )
            columns, axis = (
                activations.constant(f"{name}/columns", [site.columns]),
                activations.constant(f"{name}/axis", 0),
            )
            self.graph.add(
                node(
                    f"{name}/sizes",
                    "ConcatV2",
                    [f"{name}/count", columns, axis],
                    T=tf.int32,
                    Tidx=tf.int32,
                    N=2,
                )
            )
            shape = f"{name}/sizes"
        self.graph.add(node(name, "Reshape", [addend, shape], T=tf.float32, Tshape=tf.int32))
        return name

    # -- convolutions ----------------------------------------------------------------------------------------

    def _conv(self, site: Site, scheme: Scheme) -> None:
        activations, group = self._activations, self._wants.smoothing(site)
        pool: str | None = None
        if group is not None:
            x, source = activations.smoothed(group)
            pool = self._pool(site) if isinstance(source, Quantized) else None
        else:
            x, source = self._input(site, activation_grid(site, scheme, self._ranges))
            pool = self._pool(site) if isinstance(source, Quantized) and source != x else None
        multiplier = None if group is None else group.multiplier
        given = self._outputs.of(site, scheme)
        form, output, summand, factors = given.form, given.grid, given.summand, given.factors
        weight, correction = self._weight(site, scheme, x, multiplier)
        kernel, bias, low, high = self._parameters(site, weight, correction, factors)
        name = self.graph.fresh(f"{form.tail}/int8")
        ends = self._ends(name, output)
        self.graph.add(
            quantized_conv(
                name,
                KERNELS[site.op.kind],
                (x.values, kernel, bias),
                (x.low, x.high, low, high),
                ends,
                signed=(x.grid is not None and x.grid.signed, output.signed),
                relu=form.activation is not None,
                summand=(summand.values, summand.low, summand.high, False) if summand else None,
                geometry=geometry(self._reference.nodes[site.core]),
            )
        )
        result = Quantized(f"{name}:0", *ends, output, rows=False)
        # The float forms are swept away at the end if everybody reads the int8 one.
        if factors is None:
            activations.provide(form.output, result)
            self._dequantize(form.tail, result)
        elif given.taker is not None:
            made = result if given.pool is None else activations.pooled(given.pool, result)
            activations.provide_smoothed(given.taker.sites[0].x, given.taker, made, result)
        else:
            self._dequantize(f"{name}/float", result)
            activations.scaled(form.tail, f"{name}/float", 1 / factors)
        premultiplied = multiplier is not None and source != site.x
        self.pieces.append(
            Piece(
                site,
                scheme,
                form,
                source,
                result,
                weight,
                multiplier,
                x.grid,
                premultiplied,
                summand,
                correction,
                factors,
                pool,
            )
        )

    def _dequantize(self, name: str, made: Quantized) -> None:
        kind, how = (
            (tf.qint8, "SCALED") if made.grid is not None and made.grid.signed else (tf.quint8, "MIN_FIRST")
        )
        inputs = [made.values, made.low, made.high]
        self.graph.add(
            node(name, "Dequantize", inputs, T=kind, mode=how, dtype=tf.float32, narrow_range=False, axis=-1)
        )

    def _pool(self, site: Site) -> str | None:
        """The max pooling that gives a convolution its input."""
        name = node_of(site.x)
        return name if name in self._reference and is_pool(self._reference, name) else None

    # -- bfloat16 --------------------------------------------------------------------------------------------

    def _bf16(self, site: Site, scheme: Scheme) -> None:
        """Only the op itself: cast, compute, cast back."""
        core = self._reference.nodes[site.core]
        x = self._reference.inputs(core)[0]
        if x not in self._halves:
            name = self.graph.fresh(f"{node_of(x)}/bf16")
            self.graph.add(node(name, "Cast", [x], SrcT=tf.float32, DstT=tf.bfloat16, Truncate=False))
            self._halves[x] = name
        weight = self.graph.fresh(f"{site.core}/bf16_weight")
        self.graph.add(self._weights.bf16(site, weight))
        name = self.graph.fresh(f"{site.core}/bf16")
        if site.is_conv:
            made = node(
                name, core.op, [self._halves[x], weight], T=tf.bfloat16, data_format="NHWC", **geometry(core)
            )
        else:
            made = node(
                name, "MatMul", [self._halves[x], weight], T=tf.bfloat16, transpose_a=False, transpose_b=False
            )
        self.graph.add(made)
        self.graph.add(node(site.core, "Cast", [name], SrcT=tf.bfloat16, DstT=tf.float32, Truncate=False))
        form = Form((site.core,))
        self.pieces.append(Piece(site, scheme, form, x, form.output))
