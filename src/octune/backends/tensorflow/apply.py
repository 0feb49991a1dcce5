"""A plan becomes nodes: every op of the plan is replaced in a copy of the reference graph.

    emission = Emission(reference, sites, shapes, weights, plan, ranges)
    emission.graph                      # the graph under the plan
    emission.pieces                     # what was replaced, for checking it piece by piece (see verify)

Sites come in the order of computation, so whatever an op reads is there when it is its turn. Where everybody who reads an op's output
wants it in int8 and in one range, the op gives just that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.activations import Activations, Quantized
from octune.backends.tensorflow.emit import node, quantized_conv, quantized_matmul
from octune.backends.tensorflow.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.ranges import Range, activation_range, output_range, smoothed
from octune.backends.tensorflow.shapes import Shapes
from octune.backends.tensorflow.site import KERNELS, Form, Site, geometry
from octune.backends.tensorflow.weights import Int8Weight, Weights
from octune.calibration import Ranges
from octune.errors import PlanError
from octune.plan import Plan, Scheme
from octune.repair import SMOOTH, Smoothing

__all__ = ["Emission", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One replaced op: what it reads and gives in the new graph, and what these stand for in the reference."""

    site: Site
    scheme: Scheme
    form: Form
    source: str | Quantized  # a float tensor, or int8 values that another piece makes
    result: str | Quantized
    weight: Int8Weight | None = None
    multiplier: Array | None = None  # smoothing: what the reference's input is multiplied by
    input_range: Range | None = None
    premultiplied: bool = False  # the source holds the smoothed input already
    addend: Quantized | None = None


class Emission:
    """Does its work when it is made."""

    def __init__(self, reference: Graph, sites: Mapping[str, Site], shapes: Shapes, weights: Weights, plan: Plan, ranges: Ranges) -> None:
        self._reference, self._weights, self._ranges = reference, weights, ranges
        self.graph = reference.copy()
        self.pieces: list[Piece] = []
        self._activations = Activations(self.graph, reference, shapes)
        self._plan = {name: scheme for name, scheme in plan.items() if scheme.dtype != "fp32"}
        self._sites = [site for name, site in sites.items() if name in self._plan]
        self._check_repairs()
        self._smoothings = self._smooth_all()
        self._halves: dict[str, str] = {}
        for site in self._sites:
            scheme = self._plan[site.op.name]
            if scheme.dtype == "bf16":
                self._bf16(site, scheme)
            elif site.is_conv:
                self._conv(site, scheme)
            else:
                self._dense(site, scheme)
        gone = [name for site in self._sites for name in (*site.path, *site.plain.members, *(site.summed.members if site.summed else ()))]
        self.graph.sweep([*gone, *(node_of(read) for name in gone for read in reference.nodes[name].input)])

    # -- what is wanted -------------------------------------------------------------------------------------------

    def _check_repairs(self) -> None:
        for site in self._sites:
            scheme = self._plan[site.op.name]
            unknown = set(scheme.repairs) - ({SMOOTH} if not site.is_conv and scheme.mode == "static" else set())
            if unknown:
                raise PlanError(f"A {site.op.kind} has no repair named {sorted(unknown)[0]!r} in {scheme} ({site.op.name!r}).")

    def _smooth_all(self) -> dict[str, tuple[Smoothing, list[Site]]]:
        """Sites to be smoothed, by name, with the group that reads the same tensor."""
        groups: dict[str, list[Site]] = {}
        for site in self._sites:
            if SMOOTH in self._plan[site.op.name].repairs:
                groups.setdefault(site.x, []).append(site)
        found: dict[str, tuple[Smoothing, list[Site]]] = {}
        for group in groups.values():
            scheme = self._plan[group[0].op.name]
            one = smoothed(group, [site.weights(self._reference) for site in group], scheme, self._ranges)
            found.update({site.op.name: (one, group) for site in group})
        return found

    def _static(self, site: Site) -> Range | None:
        """The range in which an op wants its input as it is; None if it wants something else."""
        scheme = self._plan.get(site.op.name)
        if scheme is None or scheme.mode != "static" or site.op.name in self._smoothings:
            return None
        return activation_range(site, scheme, self._ranges)

    def _readers(self, tensor: str, *, conv: bool) -> list[Site]:
        return [site for site in self._sites if site.x == tensor and site.is_conv == conv]

    def _chain(self, form: Form) -> Range | None:
        """The range in which all readers of a matmul want its output, if it is one and they are int8 matmuls."""
        if not self._reference.is_private(form.tail):
            return None
        readers = self._readers(form.output, conv=False)
        wanted = {self._static(site) for site in readers}
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

    def _parameters(self, site: Site, weight: Int8Weight) -> tuple[str, str, str, str]:
        """int8 weight, bias, and the ends of the weight's range, as constants."""
        make = self._activations.constant
        bias = np.zeros(site.columns, np.float32) if site.bias is None else site.bias
        ends = [make(f"{site.core}/weight_{end}", np.asarray(sign * weight.reach, np.float32)) for end, sign in (("low", -1), ("high", 1))]
        return make(f"{site.core}/int8_weight", weight.values, tf.qint8), make(f"{site.core}/bias", bias), ends[0], ends[1]

    # -- matmuls --------------------------------------------------------------------------------------------------

    def _dense(self, site: Site, scheme: Scheme) -> None:
        activations = self._activations
        divisor: Array | None = None
        source: str | Quantized = site.x
        if site.op.name in self._smoothings:
            found, group = self._smoothings[site.op.name]
            divisor = found.multiplier
            x, source = activations.smoothed(group, found)
        elif scheme.mode == "dynamic":
            x = activations.dynamic(site)
        else:
            x, source = self._input(site, activation_range(site, scheme, self._ranges))
        form = site.summed or site.plain
        weight = self._weights.int8(site, scheme.granularity, divisor)
        kernel, bias, low, high = self._parameters(site, weight)
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
        self.pieces.append(Piece(site, scheme, form, source, result, weight, divisor, x.range, divisor is not None and source != site.x))

    def _input(self, site: Site, wanted: Range) -> tuple[Quantized, str | Quantized]:
        """A site's input in int8, and what it is made from: float, or the int8 output of another op."""
        made = self._activations.provided(site.x, wanted)
        if made is not None and any(piece.result == made for piece in self.pieces):
            return made, made
        return self._activations.quantized(site.x, wanted), site.x

    def _ends(self, name: str, span: Range) -> tuple[str, str]:
        return self._activations.constant(f"{name}/low", span.low), self._activations.constant(f"{name}/high", span.high)

    def _lift(self, site: Site, name: str, rows: str, dtype: tf.DType) -> None:
        """The Reshape behind a matmul, on another tensor."""
        lift = self._reference.nodes[str(site.lift)]
        self.graph.add(node(name, "Reshape", [rows, lift.input[1]], T=dtype, Tshape=tf.as_dtype(attribute(lift, "Tshape").type)))

    def _sizes(self, site: Site, form: Form, made: Quantized, *, lifted: bool) -> None:
        """Those who ask for the shape of an output that is now int8 only (tensordot does) get it from there."""
        asking = [name for name, _ in self._reference.readers(form.output) if self._reference.nodes[name].op == "Shape"]
        view = made.values
        if asking and lifted:
            view = self.graph.fresh(f"{form.tail}/view")
            self._lift(site, view, made.values, tf.quint8)
        for name in asking:
            kind = tf.as_dtype(attribute(self._reference.nodes[name], "out_type").type)
            self.graph.add(node(name, "Shape", [view], T=tf.quint8, out_type=kind))

    def _addend(self, site: Site, form: Form, values: str) -> str:
        """The addend as rows. Where its shape is not proven to fit, a Reshape to the very shape of the output raises if it does not."""
        addend, activations = str(form.addend), self._activations
        if not form.guarded:
            fits = activations.is_matrix(addend)
            return addend if fits else activations.rows(addend, site.columns, tf.float32, f"{site.core}/addend")
        name = self.graph.fresh(f"{site.core}/addend")
        shape = f"{name}/shape"
        self.graph.add(node(shape, "Shape", [values], T=tf.quint8, out_type=tf.int32))
        if activations.inner(site) != site.columns:
            ends = [activations.constant(f"{name}/{part}", [value]) for part, value in (("begin", 0), ("end", 1), ("step", 1))]
            masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
            self.graph.add(node(f"{name}/count", "StridedSlice", [shape, *ends], T=tf.int32, Index=tf.int32, **masks))
            columns, axis = activations.constant(f"{name}/columns", [site.columns]), activations.constant(f"{name}/axis", 0)
            self.graph.add(node(f"{name}/sizes", "ConcatV2", [f"{name}/count", columns, axis], T=tf.int32, Tidx=tf.int32, N=2))
            shape = f"{name}/sizes"
        self.graph.add(node(name, "Reshape", [addend, shape], T=tf.float32, Tshape=tf.int32))
        return name

    # -- convolutions ---------------------------------------------------------------------------------------------

    def _conv(self, site: Site, scheme: Scheme) -> None:
        wanted = activation_range(site, scheme, self._ranges)
        x, source = self._input(site, wanted)
        form, output, summand = self._conv_form(site, scheme)
        weight = self._weights.int8(site, scheme.granularity)
        kernel, bias, low, high = self._parameters(site, weight)
        name = self.graph.fresh(f"{form.tail}/int8")
        ends = self._ends(name, output)
        self.graph.add(
            quantized_conv(
                name,
                KERNELS[site.op.kind],
                (x.values, kernel, bias),
                (x.low, x.high, low, high),
                ends,
                signed=(wanted.signed, output.signed),
                relu=form.activation is not None,
                summand=(summand.values, summand.low, summand.high, False) if summand else None,
                geometry=geometry(self._reference.nodes[site.core]),
            )
        )
        result = Quantized(f"{name}:0", *ends, output, rows=False)
        self._activations.provide(form.output, result)
        kind, how = (tf.qint8, "SCALED") if output.signed else (tf.quint8, "MIN_FIRST")
        # Swept away at the end if everybody reads the int8 form.
        self.graph.add(node(form.tail, "Dequantize", [f"{name}:0", *ends], T=kind, mode=how, dtype=tf.float32, narrow_range=False, axis=-1))
        self.pieces.append(Piece(site, scheme, form, source, result, weight, None, wanted, False, summand))

    def _conv_form(self, site: Site, scheme: Scheme) -> tuple[Form, Range, Quantized | None]:
        """With the addend where it is at hand as uint8 and somebody wants the sum in int8; else without."""
        if site.summed is not None:
            summand = self._activations.from_zero(str(site.summed.addend))
            wanted = [r for s in self._readers(site.summed.output, conv=True) if (r := self._static(s)) is not None and not r.signed]
            if summand is not None and wanted and self._is_last_reader(site, site.summed):
                return site.summed, wanted[0], summand
        wanted = [r for s in self._readers(site.plain.output, conv=True) if (r := self._static(s)) is not None]
        fitting = [r for r in wanted if r.signed == (site.plain.activation is None)]
        output = fitting[0] if fitting else output_range(site, scheme, self._ranges)
        if output is None:
            raise PlanError(f"The plan asks for {scheme} at {site.op.name!r}, but calibration has not seen its output. Calibrate again.")
        return site.plain, output, None

    def _is_last_reader(self, site: Site, form: Form) -> bool:
        """Whether all others that read the addend have done so before the sum can begin.

        The kernel writes the sum over the addend. Where it may not, because somebody else is still to read it, the process dies.
        """
        addend = str(form.addend)
        before: set[str] = set()
        waiting = [site.core]
        while waiting:
            name = waiting.pop()
            if name not in before and name != node_of(addend):
                before.add(name)
                waiting.extend(node_of(reference) for reference in self._reference.nodes[name].input)
        int8 = {other.core for other in self._readers(addend, conv=True) if self._static(other) is not None}
        others = set(self._reference.followers(node_of(addend))) - set(form.members)
        return self._reference.is_private(node_of(addend)) and others <= int8 & before

    # -- bfloat16 -------------------------------------------------------------------------------------------------

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
            made = node(name, core.op, [self._halves[x], weight], T=tf.bfloat16, data_format="NHWC", **geometry(core))
        else:
            made = node(name, "MatMul", [self._halves[x], weight], T=tf.bfloat16, transpose_a=False, transpose_b=False)
        self.graph.add(made)
        self.graph.add(node(site.core, "Cast", [name], SrcT=tf.bfloat16, DstT=tf.float32, Truncate=False))
        form = Form((site.core,))
        self.pieces.append(Piece(site, scheme, form, x, form.output))
