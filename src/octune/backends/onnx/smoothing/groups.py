"""Smoothing of the ops that read one tensor: they share a multiplier, so that the tensor is still quantized
once for all of them.

    groups = SmoothingGroups(view, found, ranges)
    groups.of(item).smoothing.multiplier
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.smoothing.target import SmoothingTarget, find_target
from octune.backends.terms import OUTPUT
from octune.calibration import Ranges, TensorStats
from octune.repair import Smoothing, shared_smoothing

__all__ = ["SmoothingGroup", "SmoothingGroups", "output_range"]


@dataclass(frozen=True, slots=True, eq=False)
class SmoothingGroup:
    """The weighted ops that read one tensor, and what its channels would be multiplied by for them.

    ``target`` says where the multiplier can go if all members want it; ``factors`` is the multiplier for the
    channels there.
    """

    tensor: str
    members: tuple[Found, ...]
    smoothing: Smoothing
    target: SmoothingTarget | None
    factors: Array


class SmoothingGroups:
    """The groups of a graph and their multipliers for the ranges that calibration found. They do not depend
    on any plan.
    """

    def __init__(self, view: View, found: Sequence[Found], ranges: Ranges) -> None:
        self.ranges = ranges
        self._view = view
        self._ops = {item.index: item for item in found}
        self._readers: dict[tuple[str, int], list[Found]] = {}
        for item in found:
            if item.multiplies_weight:
                self._readers.setdefault((item.x, item.kind.channel_axis), []).append(item)
        self._known: dict[tuple[str, int], SmoothingGroup | None] = {}

    def of(self, item: Found) -> SmoothingGroup | None:
        """The group of an op; None where it has none, or calibration did not see its channels."""
        key = (item.x, item.kind.channel_axis)
        if not item.multiplies_weight:
            return None
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _find(self, tensor: str, axis: int) -> SmoothingGroup | None:
        members = self._readers[tensor, axis]
        stats = next((self.ranges[m.op.name] for m in members if m.op.name in self.ranges), None)
        weights = [m.weight for m in members if m.weight is not None]
        channels = weights[0].shape[1] * members[0].groups
        alike = all(
            w.shape[1] * m.groups == channels and m.groups == members[0].groups
            for w, m in zip(weights, members, strict=True)
        )
        if stats is None or stats.channel_max.size != channels or not alike:
            return None
        readers = [self._ops.get(index) for index in self._view.readers(tensor)]
        alone = tensor not in self._view.outputs and all(reader in members for reader in readers)
        target = find_target(self._view, self._ops, tensor, channels, axis) if alone else None
        return _smoothed(tensor, tuple(members), stats, weights, target)


def _smoothed(
    tensor: str,
    members: tuple[Found, ...],
    stats: TensorStats,
    weights: Sequence[Array],
    target: SmoothingTarget | None,
) -> SmoothingGroup:
    groups, channels = members[0].groups, stats.channel_max.size
    distinct = channels if target is None else target.channels
    if distinct < channels:  # behind a Flatten: one factor for all places of a channel
        peaks = stats.channel_max.reshape(distinct, -1).max(axis=1)
        weights = [w.reshape(w.shape[0], distinct, -1) for w in weights]
        stats = replace(stats, channel_max=peaks)
    made = shared_smoothing(stats, [(weight, groups) for weight in weights])
    wide = np.repeat(made.multiplier, channels // distinct)
    return SmoothingGroup(tensor, members, Smoothing(wide, made.low, made.high), target, made.multiplier)


def output_range(
    stats: Mapping[str, TensorStats], op: str, factors: Array | None, chosen: tuple[float, float]
) -> tuple[float, float]:
    """The range of an op's output whose channels are multiplied by ``factors``."""
    seen = stats[op + OUTPUT]
    if factors is None or seen.channel_max.size != factors.size:
        return chosen
    reach = float((seen.channel_max * factors).max())
    return (-reach if seen.low < 0 else 0.0), (reach if seen.high > 0 else 0.0)
