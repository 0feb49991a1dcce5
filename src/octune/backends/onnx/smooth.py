"""Smoothing of the ops that read one tensor: they share a multiplier, so that the tensor is still quantized
once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octune.backends.base import OUTPUT
from octune.backends.onnx.discover import Found
from octune.backends.onnx.fold import Fold, find_fold
from octune.backends.onnx.graph import Array, View
from octune.calibration import Ranges, TensorStats
from octune.repair import Smoothing, shared_smoothing

__all__ = ["Group", "Smoother"]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The weighted ops that read one tensor, and what its channels would be multiplied by for them.

    ``fold`` says where the multiplier can go if all readers want it; ``factors`` is it, for the channels
    there.
    """

    tensor: str
    members: tuple[Found, ...]
    smoothing: Smoothing
    fold: Fold | None
    factors: Array


class Smoother:
    """Finds the groups of a graph, and their multipliers for given ranges; both depend on no plan."""

    def __init__(self, view: View, found: Sequence[Found]) -> None:
        self._view = view
        self._ops = {item.index: item for item in found}
        self._readers: dict[tuple[str, int], list[Found]] = {}
        for item in found:
            if item.weight is not None and item.op.kind != "embedding":
                self._readers.setdefault((item.x, item.channel_axis), []).append(item)
        self._known: dict[tuple[int, str, int], Group | None] = {}
        self._ranges: list[Ranges] = []  # kept alive, so that their ids stay theirs

    def group(self, item: Found, ranges: Ranges) -> Group | None:
        """The group of an op; None where calibration saw no channels."""
        key = (id(ranges), item.x, item.channel_axis)
        if key not in self._known:
            self._ranges.append(ranges)
            self._known[key] = self._find(item, ranges)
        return self._known[key]

    def _find(self, item: Found, ranges: Ranges) -> Group | None:
        members = self._readers[item.x, item.channel_axis]
        stats = next((ranges[m.op.name] for m in members if m.op.name in ranges), None)
        weights = [m.weight for m in members if m.weight is not None]
        channels = weights[0].shape[1] * members[0].groups
        alike = all(
            w.shape[1] * m.groups == channels and m.groups == members[0].groups
            for w, m in zip(weights, members, strict=True)
        )
        if stats is None or stats.channel_max.size != channels or not alike:
            return None
        readers = [self._ops.get(index) for index in self._view.readers(item.x)]
        alone = item.x not in self._view.outputs and all(reader in members for reader in readers)
        fold = find_fold(self._view, self._ops, item.x, channels, item.channel_axis) if alone else None
        return self._smoothed(item.x, tuple(members), stats, weights, fold)

    def _smoothed(
        self,
        tensor: str,
        members: tuple[Found, ...],
        stats: TensorStats,
        weights: Sequence[Array],
        fold: Fold | None,
    ) -> Group:
        groups, channels = members[0].groups, stats.channel_max.size
        distinct = channels if fold is None else fold.channels
        if distinct < channels:  # behind a Flatten: one factor for all places of a channel
            peaks = stats.channel_max.reshape(distinct, -1).max(axis=1)
            weights = [w.reshape(w.shape[0], distinct, -1) for w in weights]
            stats = replace(stats, channel_max=peaks)
        made = shared_smoothing(stats, [(weight, groups) for weight in weights])
        wide = np.repeat(made.multiplier, channels // distinct)
        return Group(tensor, members, Smoothing(wide, made.low, made.high), fold, made.multiplier)


def output_range(
    stats: Mapping[str, TensorStats], op: str, factors: Array | None, chosen: tuple[float, float]
) -> tuple[float, float]:
    """The range of an op's output whose channels are multiplied by ``factors``."""
    seen = stats[op + OUTPUT]
    if factors is None or seen.channel_max.size != factors.size:
        return chosen
    reach = float((seen.channel_max * factors).max())
    return (-reach if seen.low < 0 else 0.0), (reach if seen.high > 0 else 0.0)
