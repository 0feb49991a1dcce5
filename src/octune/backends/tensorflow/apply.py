"""A plan becomes nodes: every op of the plan is replaced in a copy of the reference graph.

    emission = Emission(reference, sites, shapes, weights, plan, ranges)
    emission.graph                      # the graph under the plan
    emission.pieces                     # what was replaced, for checking it piece by piece (see verify)

Sites come in the order of computation, so whatever an op reads is there when it is its turn. A tensor is quantized once for all readers
that want it in the same range. Where everybody who reads an op's output wants it in int8 and in one range, the op gives just that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.emit import array_of, constant, node, quantize, quantized_conv, quantized_matmul
from octune.backends.tensorflow.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.layernorm import LAYERNORM
from octune.backends.tensorflow.ranges import Range, activation_range, output_range, smoothed
from octune.backends.tensorflow.shapes import Shapes
from octune.backends.tensorflow.site import KERNELS, Form, Site, geometry
from octune.backends.tensorflow.weights import Int8Weight, Weights
from octune.calibration import Ranges
from octune.errors import PlanError
from octune.plan import Plan, Scheme
from octune.repair import SMOOTH, Smoothing

__all__ = ["Emission", "Piece", "Quantized"]


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor in int8: the values, the ends of its range (tensors), and the range itself (None if it is taken at run time)."""

    values: str
    low: str
    high: str
    range: Range | None
    rows: bool  # already [rows, columns]


@dataclass(frozen=True, slots=True)
class Piece:
    """One replaced op: what it reads and gives in the new graph, and the tensors of the reference that these stand for."""

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
        self._reference, self._shapes, self._weights, self._ranges = reference, shapes, weights, ranges
        self.graph = reference.copy()
        self.pieces: list[Piece] = []
        self._plan = {name: scheme for name, scheme in plan.items() if scheme.dtype != "fp32"}
        self._sites = [site for name, site in sites.items() if name in self._plan]
        self._check_repairs()
        self._smoothings = self._smooth_all()
        self._int8: dict[tuple[object, ...], Quantized] = {}  # (tensor, range, ...) -> its int8 form
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
        self.graph.sweep([*gone, *(node_of(reference) for name in gone for reference in self._reference.nodes[name].input)])

    # -- what is wanted -------------------------------------------------------------------------------------------

    def _check_repairs(self) -> None:
        for site in self._sites:
            scheme = self._plan[site.op.name]
            unknown = set(scheme.repairs) - ({SMOOTH} if not site.is_conv and scheme.mode == "static" else set())
            if unknown:
                raise PlanError(f"A {site.op.kind} has no repair named {sorted(unknown)[0]!r} in {scheme} ({site.op.name!r}).")

    def _smooth_all(self) -> dict[str, Smoothing]:
        groups: dict[str, list[Site]] = {}
        for site in self._sites:
            if SMOOTH in self._plan[site.op.name].repairs:
                groups.setdefault(site.x, []).append(site)
        found: dict[str, Smoothing] = {}
        for group in groups.values():
            scheme = self._plan[group[0].op.name]
            one = smoothed(group, [site.weights(self._reference) for site in group], scheme, self._ranges)
            found.update({site.op.name: one for site in group})
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

    # -- small things ---------------------------------------------------------------------------------------------

    def _constant(self, name: str, value: Array | float | list[int], dtype: tf.DType | None = None) -> str:
        name = self.graph.fresh(name)
        self.graph.add(constant(name, value, dtype))
        return name

    def _scalar(self, name: str, value: float) -> str:
        return self._constant(name, value)

    def _rows(self, tensor: str, columns: int, dtype: tf.DType, name: str) -> str:
        """A tensor as [rows, columns]."""
        name = self.graph.fresh(f"{name}/rows")
        shape = self._constant(f"{name}/shape", [-1, columns])
        self.graph.add(node(name, "Reshape", [tensor, shape], T=dtype, Tshape=tf.int32))
        return name

    def _is_matrix(self, tensor: str) -> bool:
        return len(self._shapes[tensor] or ()) == 2

    # -- inputs ---------------------------------------------------------------------------------------------------

    def _quantize(self, x: str, wanted: Range, name: str) -> Quantized:
        """The int8 form of a float tensor, made once for each range."""
        key = (x, wanted)
        if key not in self._int8:
            name = self.graph.fresh(f"{name}/quantize")
            low, high = self._scalar(f"{name}/low", wanted.low), self._scalar(f"{name}/high", wanted.high)
            self.graph.add(quantize(name, x, low, high, signed=wanted.signed))
            self._int8[key] = Quantized(f"{name}:0", low, high, wanted, self._is_matrix(x))
        return self._int8[key]

    def _dynamic(self, site: Site) -> Quantized:
        """The range is that of each input."""
        key = (site.x, "dynamic")
        if key not in self._int8:
            base = self.graph.fresh(f"{node_of(site.x)}/dynamic")
            x = site.x if self._is_matrix(site.x) else self._rows(site.x, self._inner(site), tf.float32, base)
            axes = self._constant(f"{base}/axes", [0, 1])
            for which in ("Min", "Max"):
                self.graph.add(node(f"{base}/{which}", which, [x, axes], T=tf.float32, Tidx=tf.int32, keep_dims=False))
            self.graph.add(quantize(base, x, f"{base}/Min", f"{base}/Max"))
            self._int8[key] = Quantized(f"{base}:0", f"{base}:1", f"{base}:2", None, rows=True)
        return self._int8[key]

    def _smooth_input(self, site: Site, found: Smoothing) -> tuple[Quantized, str]:
        """The smoothed input, quantized, and the float tensor that it is made from (which may be smoothed already)."""
        wanted = Range.affine(found.low, found.high)
        key = (site.x, wanted, found.multiplier.tobytes())
        if key not in self._int8:
            source = self._smooth_layernorm(site, found)
            if source is None:
                name = self.graph.fresh(f"{node_of(site.x)}/smooth")
                x = (
                    site.x
                    if self._inner(site) == (self._shapes[site.x] or (None,))[-1]
                    else self._rows(site.x, self._inner(site), tf.float32, name)
                )
                factor = self._constant(f"{name}/multiplier", found.multiplier)
                self.graph.add(node(name, "Mul", [x, factor], T=tf.float32))
                made = self._quantize(f"{name}:0", wanted, name)
            else:
                made = self._quantize(source, wanted, node_of(source))
            self._int8[key] = Quantized(made.values, made.low, made.high, wanted, self._is_matrix(site.x))
            self._int8[key, "source"] = Quantized(source or site.x, "", "", None, rows=source is not None)
        return self._int8[key], self._int8[key, "source"].values

    def _smooth_layernorm(self, site: Site, found: Smoothing) -> str | None:
        """The layer normalisation before a site with the smoothing in its gamma and beta, if only smoothed sites read it."""
        made = self._reference.maker(site.x)
        group = [s for s in self._readers(site.x, conv=False) if self._smoothings.get(s.op.name) is found]
        through = {name for s in group for name in (*s.path, s.core)}
        if made.op != LAYERNORM or not self._reference.is_private(made.name) or not set(self._reference.followers(made.name)) <= through:
            return None
        if any(not set(self._reference.followers(name)) <= through for s in group for name in s.path):
            return None
        values = [self._reference.maker(reference) for reference in made.input[1:]]
        names = [self._constant(f"{value.name}/smooth", array_of(value) * found.multiplier) for value in values]
        name = self.graph.fresh(f"{made.name}/smooth")
        self.graph.add(node(name, LAYERNORM, [made.input[0], *names], T=tf.float32, epsilon=attribute(made, "epsilon").f))
        return f"{name}:0"

    def _inner(self, site: Site) -> int:
        shape = self._shapes[site.weight]
        if shape is None or len(shape) != 2:
            raise PlanError(f"The weight of {site.op.name!r} has no known shape.")
        return int(shape[1 if attribute(self._reference.nodes[site.core], "transpose_b").b else 0] or 0)

    # -- matmuls --------------------------------------------------------------------------------------------------

    def _dense(self, site: Site, scheme: Scheme) -> None:
        found = self._smoothings.get(site.op.name)
        divisor = None if found is None else found.multiplier
        source: str | Quantized = site.x
        if found is not None:
            x, source = self._smooth_input(site, found)
        elif scheme.mode == "dynamic":
            x = self._dynamic(site)
        else:
            wanted = activation_range(site, scheme, self._ranges)
            chained = self._int8.get((site.x, wanted, "chained"))
            x = chained or self._quantize(site.x, wanted, node_of(site.x))
            source = chained or site.x
        weight = self._weights.int8(site, scheme.granularity, divisor)
        form = site.summed or site.plain
        values = x.values if x.rows else self._shared_rows(x.values, self._inner(site))
        base = site.core
        reach = [
            self._constant(f"{base}/weight_{end}", sign * weight.reach) for end, sign in (("low", np.float32(-1)), ("high", np.float32(1)))
        ]
        bias = np.zeros(site.columns, np.float32) if site.bias is None else site.bias
        arguments = (values, self._constant(f"{base}/int8_weight", weight.values, tf.qint8), self._constant(f"{base}/bias", bias))
        scales = (x.low, x.high, reach[0], reach[1])
        output = self._chain(form) if form.addend is None else None
        lifted = site.lift is not None and site.lift in form.members
        name = form.tail if output is None and not lifted else self.graph.fresh(f"{form.tail}/int8")
        addend = self._addend(site, form, values) if form.addend else None
        ends = None if output is None else (self._scalar(f"{name}/low", output.low), self._scalar(f"{name}/high", output.high))
        activation = form.activation
        self.graph.add(
            quantized_matmul(
                name, arguments, scales,
                activation=activation.name if activation else None, alpha=activation.alpha if activation else 0.2,
                addend=addend, output=ends,
            )
        )  # fmt: skip
        result: str | Quantized = form.output
        if output is not None and ends is not None:
            result = Quantized(f"{name}:0", ends[0], ends[1], output, rows=True)
            self._int8[form.output, output, "chained"] = result
            self._sizes(site, form, result, lifted=lifted)
        elif lifted and site.lift is not None:
            shape = self._reference.nodes[site.lift].input[1]
            kind = tf.as_dtype(attribute(self._reference.nodes[site.lift], "Tshape").type)
            self.graph.add(node(form.tail, "Reshape", [name, shape], T=tf.float32, Tshape=kind))
        premultiplied = found is not None and source != site.x
        self.pieces.append(Piece(site, scheme, form, source, result, weight, divisor, x.range, premultiplied))

    def _sizes(self, site: Site, form: Form, made: Quantized, *, lifted: bool) -> None:
        """Those who ask for the shape of an output that is now int8 only (tensordot does) get it from there."""
        asking = [name for name, _ in self._reference.readers(form.output) if self._reference.nodes[name].op == "Shape"]
        view = made.values
        if asking and lifted and site.lift is not None:
            lift = self._reference.nodes[site.lift]
            view = self.graph.fresh(f"{form.tail}/view")
            self.graph.add(
                node(view, "Reshape", [made.values, lift.input[1]], T=tf.quint8, Tshape=tf.as_dtype(attribute(lift, "Tshape").type))
            )
        for name in asking:
            kind = tf.as_dtype(attribute(self._reference.nodes[name], "out_type").type)
            self.graph.add(node(name, "Shape", [view], T=tf.quint8, out_type=kind))

    def _shared_rows(self, values: str, columns: int) -> str:
        key = (values, "rows")
        if key not in self._int8:
            rows = self._rows(values, columns, tf.quint8, node_of(values))
            self._int8[key] = Quantized(rows, "", "", None, rows=True)
        return self._int8[key].values

    def _addend(self, site: Site, form: Form, values: str) -> str:
        """The addend as rows. Where its shape is not proven to fit, a Reshape to the very shape of the output raises if it does not."""
        addend = str(form.addend)
        if not form.guarded:
            return addend if self._is_matrix(addend) else self._rows(addend, site.columns, tf.float32, f"{site.core}/addend")
        name = self.graph.fresh(f"{site.core}/addend")
        shape = f"{name}/shape"
        self.graph.add(node(shape, "Shape", [values], T=tf.quint8, out_type=tf.int32))
        if self._inner(site) != site.columns:
            ends = [self._constant(f"{name}/{part}", [value]) for part, value in (("begin", 0), ("end", 1), ("step", 1))]
            masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
            self.graph.add(node(f"{name}/count", "StridedSlice", [shape, *ends], T=tf.int32, Index=tf.int32, **masks))
            columns, axis = self._constant(f"{name}/columns", [site.columns]), self._constant(f"{name}/axis", 0)
            self.graph.add(node(f"{name}/sizes", "ConcatV2", [f"{name}/count", columns, axis], T=tf.int32, Tidx=tf.int32, N=2))
            shape = f"{name}/sizes"
        self.graph.add(node(name, "Reshape", [addend, shape], T=tf.float32, Tshape=tf.int32))
        return name

    # -- convolutions ---------------------------------------------------------------------------------------------

    def _conv(self, site: Site, scheme: Scheme) -> None:
        wanted = activation_range(site, scheme, self._ranges)
        chained = self._int8.get((site.x, wanted, "chained"))
        x = chained or self._quantize(site.x, wanted, node_of(site.x))
        form, output, summand = self._conv_form(site, scheme)
        weight = self._weights.int8(site, scheme.granularity)
        base = site.core
        reach = [
            self._constant(f"{base}/weight_{end}", sign * weight.reach) for end, sign in (("low", np.float32(-1)), ("high", np.float32(1)))
        ]
        bias = np.zeros(site.columns, np.float32) if site.bias is None else site.bias
        name = self.graph.fresh(f"{form.tail}/int8")
        ends = (self._scalar(f"{name}/low", output.low), self._scalar(f"{name}/high", output.high))
        self.graph.add(
            quantized_conv(
                name, KERNELS[site.op.kind],
                (x.values, self._constant(f"{base}/int8_weight", weight.values, tf.qint8), self._constant(f"{base}/bias", bias)),
                (x.low, x.high, reach[0], reach[1]), ends,
                signed=(wanted.signed, output.signed), relu=form.activation is not None,
                summand=(summand.values, summand.low, summand.high, False) if summand else None,
                geometry=geometry(self._reference.nodes[site.core]),
            )
        )  # fmt: skip
        result = Quantized(f"{name}:0", ends[0], ends[1], output, rows=False)
        self._int8[form.output, output, "chained"] = result
        kind = tf.qint8 if output.signed else tf.quint8
        # Swept away at the end if everybody reads the int8 form.
        how = "SCALED" if output.signed else "MIN_FIRST"
        self.graph.add(node(form.tail, "Dequantize", [f"{name}:0", *ends], T=kind, mode=how, dtype=tf.float32, narrow_range=False, axis=-1))
        self.pieces.append(Piece(site, scheme, form, chained or site.x, result, weight, None, wanted, False, summand))

    def _conv_form(self, site: Site, scheme: Scheme) -> tuple[Form, Range, Quantized | None]:
        """With the addend where it is at hand as uint8 and somebody wants the sum in int8; else without."""
        if site.summed is not None:
            summand = next((q for (key, *_), q in self._int8.items() if key == site.summed.addend and _from_zero(q.range)), None)
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


def _from_zero(span: Range | None) -> bool:
    return span is not None and not span.signed and span.low == 0
