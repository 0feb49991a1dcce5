"""Harm of every op in every scheme, without building a model for any of them.

To first order, an error at an op's output moves the model's output in proportion. So the error of every
scheme is computed at the op itself (see ``errors``), and how much of it reaches the output is measured once
for each op: a small part of a typical error is fed into the fp32 model at that place (see ``inject``).

Errors are measured by channel, relative to what the channel carries: a channel that is a hundred times larger
is read by weights that are a hundred times smaller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from octune.backends.batches import Inputs
from octune.backends.onnx.errors import LocalErrors, OpErrors
from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.inject import Injector
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.observe import tapped
from octune.backends.onnx.runtimes import session
from octune.harm import output_change
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["first_order_harm"]

# The share of an op's output that is fed in: small enough to be linear, large enough to show in fp32.
INJECTED_SHARE = 0.02
# Samples that are probed: at least two, and more while all probes together stay below this many products. By
# their number and not by the clock, so that the same model and data have the same harms on every machine.
ROWS = range(2, 5)
PRODUCTS = 5e11
Harms = dict[tuple[str, Scheme], float]
Key = TypeVar("Key")


def first_order_harm(
    view: View,
    found: Mapping[str, Found],
    candidates: Mapping[str, Sequence[Scheme]],
    feeds: Sequence[Inputs],
    errors: LocalErrors,
    threads: int | None,
    *,
    splits: bool,
    only: Collection[str] | None = None,
) -> Harms:
    """Squared change of the output over its variance, by op and scheme; of all candidates, or of ``only``
    these.
    """
    items = [found[name] for name, schemes in candidates.items() if schemes and name in found]
    if not items or not feeds:
        return {}
    owners = _owners(view, found, errors)
    injector = Injector(view, items, threads)
    tensors = {name for item in items for name in (*item.inputs, item.output)}
    inner = sorted({*tensors, *injector.needed, *view.outputs} - set(view.inputs))
    taps = session(tapped(view, inner)[0], threads)

    def look(feed: Inputs) -> dict[str, Array]:
        return dict(zip(inner, taps.run(inner, dict(feed.kwargs)), strict=True)) | dict(feed.kwargs)

    values: Harms = defaultdict(float)
    asked = {item.op.name for item in items if only is None or item.op.name in only}
    feeds = _affordable(feeds, look, items) if splits else feeds[:1]
    for feed in feeds:
        seen = look(feed)
        for item in items:
            name = item.op.name
            y = seen[item.output]
            if name in asked:
                own = OpErrors(errors, item, [seen[x] for x in item.inputs], y, name not in owners)
                sampled = {scheme: own(scheme, few=True) for scheme in candidates[name]}
                for scheme, harm in _harms(item, sampled, own, injector, seen, view.outputs).items():
                    values[name, scheme] += harm / len(feeds)
            for reader in owners.get(name, ()):
                if reader.factors is None or reader.op not in asked:
                    continue
                plain = Scheme.int8()
                rounded = {
                    False: errors.rounding(item, y, y, plain),
                    True: errors.rounding(item, y, y, plain, reader.factors),
                }
                # These errors are whole already.
                extra = _harms(item, rounded, rounded.__getitem__, injector, seen, view.outputs)
                for scheme in candidates.get(reader.op, ()):
                    if scheme.mode == "static":
                        values[reader.op, scheme] += extra[repairs_of(scheme).smooths] / len(feeds)
    return _one_range_for_all(dict(values), items, view)


def _harms(
    item: Found,
    sampled: Mapping[Key, Array],
    whole: Callable[[Key], Array],
    injector: Injector,
    seen: Mapping[str, Array],
    outputs: Sequence[str],
) -> dict[Key, float]:
    """The harm of several errors at one op's output: the first is fed in as a ``whole``, the others are
    compared with it on samples.
    """
    y = seen[item.output]
    unit = _unit(y, item.kind.channel_axis)
    squares = {key: _square(error, unit) for key, error in sampled.items()}
    first = next((key for key in squares if 0 < squares[key] < np.inf), None)
    if first is None:
        return {key: 0.0 if square == 0 else np.inf for key, square in squares.items()}
    error = sampled[first] if sampled[first].shape == y.shape else whole(first)
    share = min(1.0, INJECTED_SHARE * float(np.sqrt(y.size / max(_square(error, unit), 1e-30))))
    before = {name: seen[name] for name in outputs}
    after = before | injector.outputs(item, error * np.float32(share), seen)
    moved = output_change([before], [after])
    return {key: moved / share**2 * square / squares[first] for key, square in squares.items()}


def _square(error: Array, unit: Array) -> float:
    """The sum of squares, every channel relative to what it carries."""
    if error.ndim != unit.ndim:  # a sample of rows
        unit = unit.reshape(1, -1)
    return float(np.square(error / unit, dtype=np.float64).sum())


def _unit(y: Array, channel_axis: int) -> Array:
    """What every channel carries, in a shape that divides ``y``."""
    axes = tuple(axis for axis in range(y.ndim) if axis != channel_axis % y.ndim)
    power = np.sqrt(np.square(y, dtype=np.float64).mean(axis=axes, keepdims=True))
    return np.asarray(np.maximum(power, 1e-6 * power.max(initial=0.0) + 1e-12), np.float32)


def _affordable(
    feeds: Sequence[Inputs], look: Callable[[Inputs], Mapping[str, Array]], items: Sequence[Found]
) -> list[Inputs]:
    """As many samples as there is time for, with one probe for each op, through half of the graph on
    average.
    """
    seen = look(feeds[0].resized(1))
    sample = sum(
        seen[item.output].size * (seen[item.x].shape[-1] if item.weight is None else item.weight[0].size)
        for item in items
    )
    rows = int(np.clip(PRODUCTS / max(0.5 * len(items) * sample, 1.0), ROWS[0], ROWS[-1]))
    kept: list[Inputs] = []
    for feed in feeds:
        if rows > 0:
            kept.append(feed.resized(min(rows, feed.batch_size)))
            rows -= feed.batch_size
    return kept


@dataclass(frozen=True)
class Reader:
    """An op that accounts for the rounding of another op's output: it reads that output, or its smoothing
    multiplies it by ``factors``.
    """

    op: str
    factors: Array | None = None


def _owners(view: View, found: Mapping[str, Found], errors: LocalErrors) -> dict[str, list[Reader]]:
    """The ops that account for the rounding of an op's quantized output in its place, if there are any."""
    readers: dict[str, list[Reader]] = {}
    smoothers: dict[str, list[Reader]] = {}
    for item in found.values():
        if len(item.op.schemes) == 1:
            continue
        readers.setdefault(item.source(view), []).append(Reader(item.op.name))
        group = errors.groups.of(item)
        if group is not None and group.target is not None and group.target.op is not None:
            target = group.target.op.op.name
            smoothers.setdefault(target, []).append(Reader(item.op.name, group.factors))
    owners: dict[str, list[Reader]] = {}
    for name, item in found.items():
        output = item.kind.quantized_output(view, item)
        if output is not None and (counted := readers.get(output) or smoothers.get(name)):
            owners[name] = counted
    return owners


def _one_range_for_all(values: Harms, items: Sequence[Found], view: View) -> Harms:
    """Ops that read one tensor should agree on its range, so that it is quantized once.

    The method that is best for all of them together is made the best for each: others count as at least as
    harmful.
    """
    by_tensor: dict[str, list[str]] = {}
    for item in items:
        if item.multiplies_weight:
            by_tensor.setdefault(item.source(view), []).append(item.op.name)
    for names in by_tensor.values():
        plain = {
            s
            for name, s in values
            if name in names and s.mode == "static" and not s.repairs and s.granularity == "per_channel"
        }
        shared = [s for s in plain if all((name, s) in values for name in names)]
        if len(names) < 2 or len(shared) < 2:
            continue
        best = min(shared, key=lambda s: (sum(values[name, s] for name in names), str(s)))
        for name in names:
            for scheme in shared:
                if scheme != best:
                    values[name, scheme] = max(values[name, scheme], values[name, best] * (1 + 1e-6))
    return values
