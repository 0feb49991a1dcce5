"""The ops of a plan as readers of tensors: in which int8 form each of them takes its input.

readers = Readers(reference, fused_ops, plan, ranges)
readers.of("x:0", kind)             # the planned ops that read a tensor
readers.static(fused)               # Grid, or None where the op takes something else
readers.smoothing(fused)            # SmoothingGroup, or None: the channels of its input are multiplied first
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octune.backends.tensorflow.graph.graph import Array, Graph
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.backends.tensorflow.int8.ranges import activation_grid, smoothed
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import repairs_of

if TYPE_CHECKING:
    from octune.backends.tensorflow.int8.kinds.base import Kind

__all__ = ["SmoothingGroup", "Readers"]


@dataclass(frozen=True, slots=True, eq=False)
class SmoothingGroup:
    """Smoothed ops that read one tensor and take it on the same kind of grid: they read it in one int8
    form.
    """

    fused_ops: tuple[FusedOp, ...]
    multiplier: Array  # of every channel
    grid: Grid  # of the product


class Readers:
    """``fused_ops`` are the planned ones, in the order of computation."""

    def __init__(
        self, reference: Graph, fused_ops: Iterable[FusedOp], plan: Mapping[str, Scheme], ranges: Ranges
    ) -> None:
        self._reference, self._plan, self._ranges = reference, plan, ranges
        self._readers: dict[tuple[str, object], list[FusedOp]] = {}
        for fused in fused_ops:
            self._readers.setdefault((fused.x, fused.kind.grid), []).append(fused)
        self._groups: dict[str, SmoothingGroup] = {}
        for readers in self._readers.values():
            members = tuple(fused for fused in readers if repairs_of(plan[fused.op.name]).smooths)
            if members:
                self._groups.update(dict.fromkeys((fused.op.name for fused in members), self._group(members)))

    def _group(self, fused_ops: tuple[FusedOp, ...]) -> SmoothingGroup:
        weights = [fused.weights(self._reference) for fused in fused_ops]
        found = smoothed(fused_ops, weights, self._plan[fused_ops[0].op.name], self._ranges)
        return SmoothingGroup(fused_ops, found.multiplier, fused_ops[0].kind.grid(found.low, found.high))

    def of(self, tensor: str, kind: Kind) -> list[FusedOp]:
        """The planned ops that read a tensor and take it on the same kind of grid as ``kind`` does."""
        return self._readers.get((tensor, kind.grid), [])

    def smoothing(self, fused: FusedOp) -> SmoothingGroup | None:
        """The group that an op is smoothed with."""
        return self._groups.get(fused.op.name)

    def static(self, fused: FusedOp) -> Grid | None:
        """The grid on which an op takes its input as it is; None if it takes something else."""
        scheme = self._plan[fused.op.name]
        if scheme.mode != "static" or fused.op.name in self._groups:
            return None
        return activation_grid(fused, scheme, self._ranges)
