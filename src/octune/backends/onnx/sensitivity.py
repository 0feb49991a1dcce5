"""Harm of every op in every scheme, without building a model for any of them.

To first order, an error at an op's output moves the model's output in proportion. So the error of every scheme is computed at the op
itself (see ``local``), and how much of it reaches the output is measured once for each op: a small part of a typical error is fed into
the fp32 model at that place, through an extra input. One session serves all ops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper

from octune.backends.onnx.batches import Feed
from octune.backends.onnx.discover import Found
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View
from octune.backends.onnx.insert import site_of
from octune.backends.onnx.local import LocalErrors
from octune.backends.onnx.observe import tapped
from octune.backends.onnx.runtimes import session
from octune.plan import Scheme
from octune.sensitivity import output_change

__all__ = ["first_order_damage"]

log = logging.getLogger("octune")
# The share of an op's output that is fed in: small enough to be linear, large enough to show in fp32.
PUSH = 0.02
SECONDS = 20.0
ROWS = 16
Harms = dict[tuple[str, Scheme], float]


def first_order_damage(
    view: View,
    found: Mapping[str, Found],
    candidates: Mapping[str, Sequence[Scheme]],
    feeds: Sequence[Feed],
    errors: LocalErrors,
    threads: int | None,
    *,
    splits: bool,
) -> Harms:
    """Squared change of the output over its variance, by op and scheme."""
    items = [found[name] for name, schemes in candidates.items() if schemes and name in found]
    if not items or not feeds:
        return {}
    owners = _owners(view, found)
    tensors = sorted({name for item in items for name in (item.x, item.output, *([item.b] if item.op.kind == "attention" else []))})
    taps = session(tapped(view, tensors)[0], threads)
    inner = [name for name in tensors if name not in view.inputs]
    pushes, names = _pushable(view, items)
    pushed = session(pushes, threads)
    outputs = view.outputs
    rest = {name: np.zeros((), np.float32) for name in names.values()}

    def run(feed: Feed, push: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(outputs, pushed.run(outputs, {**feed.arrays, **rest, **push}), strict=True))

    values: Harms = {}
    feeds = _affordable(feeds, run, len(items)) if splits else feeds[:1]
    for feed in feeds:
        seen = dict(zip(inner, taps.run(inner, dict(feed.arrays)), strict=True)) | dict(feed.arrays)
        before = run(feed, {})
        for item in items:
            name = item.op.name
            found_errors = {
                scheme: errors(item, scheme, seen[item.x], seen.get(item.b), seen[item.output], owns_output=name not in owners)
                for scheme in candidates[name]
            }
            squares = {scheme: float(np.square(error, dtype=np.float64).sum()) for scheme, error in found_errors.items()}
            worst = max(squares, key=lambda scheme: squares[scheme])
            gain = 0.0
            if np.isfinite(squares[worst]) and squares[worst] > 0:
                size = PUSH * float(np.sqrt(np.square(seen[item.output], dtype=np.float64).sum())) or 1e-3
                push = found_errors[worst] * np.float32(min(1.0, size / np.sqrt(squares[worst])))
                gain = output_change([before], [run(feed, {names[name]: push})]) / float(np.square(push, dtype=np.float64).sum())
            for scheme, square in squares.items():
                values[name, scheme] = values.get((name, scheme), 0.0) + gain * square / len(feeds)
    return _one_range_for_all(values, items, view)


def _affordable(feeds: Sequence[Feed], run: Callable[[Feed, Mapping[str, Array]], object], ops: int) -> list[Feed]:
    """As many samples as the probe has time for, in one call."""
    first = feeds[0].resized(1)
    run(first, {})
    begun = time.perf_counter()
    run(first, {})
    seconds = time.perf_counter() - begun
    rows = int(np.clip(SECONDS / max(ops * seconds, 1e-6), 2, ROWS))
    kept: list[Feed] = []
    for feed in feeds:
        if rows > 0:
            kept.append(feed.resized(min(rows, feed.batch_size)))
            rows -= feed.batch_size
    return kept


def _pushable(view: View, items: Sequence[Found]) -> tuple[Model, dict[str, str]]:
    """The graph with an extra input at every op's output, which is added to it; and the names of those inputs by op."""
    edit = Edit(view)
    names = {}
    for item in items:
        name = names[item.op.name] = edit.name(f"{item.output}/push")
        edit.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        edit.insert(item.output, "Add", name)
    return edit.finish(), names


def _owners(view: View, found: Mapping[str, Found]) -> dict[str, str]:
    """Convolutions whose quantized output is another op's quantized input: what rounding it does counts for that op."""
    readers = {site_of(view, item, 0): item.op.name for item in found.values() if item.op.kind != "embedding" and len(item.op.schemes) > 1}
    owned = {}
    for item in found.values():
        if item.op.kind == "conv":
            reader = view.only_reader(item.output)
            fused = reader is not None and view.nodes[reader].op_type in ("Relu", "Clip")
            tensor = view.nodes[reader].output[0] if fused and reader is not None else item.output
            if tensor in readers:
                owned[item.op.name] = readers[tensor]
    return owned


def _one_range_for_all(values: Harms, items: Sequence[Found], view: View) -> Harms:
    """Ops that read one tensor should agree on its range, so that it is quantized once.

    The method that is best for all of them together is made the best for each: others count as at least as harmful.
    """
    by_tensor: dict[str, list[str]] = {}
    for item in items:
        if item.weight is not None and item.op.kind != "embedding":
            by_tensor.setdefault(site_of(view, item, 0), []).append(item.op.name)
    for names in by_tensor.values():
        plain = {s for name, s in values if name in names and s.mode == "static" and not s.repairs and s.granularity == "per_channel"}
        shared = [s for s in plain if all((name, s) in values for name in names)]
        if len(names) < 2 or len(shared) < 2:
            continue
        best = min(shared, key=lambda s: (sum(values[name, s] for name in names), str(s)))
        for name in names:
            for scheme in shared:
                if scheme != best:
                    values[name, scheme] = max(values[name, scheme], values[name, best] * (1 + 1e-6))
    return values
