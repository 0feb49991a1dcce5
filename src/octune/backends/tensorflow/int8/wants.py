"""What the ops of a plan want to read: a tensor on a grid of its own, or one whose channels were multiplied
first (smoothed).

wants = Wants(reference, sites, plan, ranges)
wants.static(site)                              # Grid, or None where the op wants something else
wants.smoothing(site)                           # Group, or None
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octune.backends.tensorflow.graph.graph import Array, Graph
from octune.backends.tensorflow.int8.ranges import activation_grid, conv_grid, smoothed
from octune.backends.tensorflow.int8.site import Site
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["Group", "Wants"]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Smoothed ops that read one tensor, all of them matmuls or all of them convolutions: they read it in one
    int8 form.
    """

    sites: tuple[Site, ...]
    multiplier: Array  # of every channel
    grid: Grid  # of the product


class Wants:
    """``sites`` are the planned ones, in the order of computation."""

    def __init__(
        self, reference: Graph, sites: Iterable[Site], plan: Mapping[str, Scheme], ranges: Ranges
    ) -> None:
        self._reference, self._plan, self._ranges = reference, plan, ranges
        self._readers: dict[tuple[str, bool], list[Site]] = {}
        for site in sites:
            self._readers.setdefault((site.x, site.is_conv), []).append(site)
        self._groups: dict[str, Group] = {}
        for readers in self._readers.values():
            members = tuple(site for site in readers if repairs_of(plan[site.op.name]).smooths)
            if members:
                self._groups.update(dict.fromkeys((site.op.name for site in members), self._group(members)))

    def _group(self, sites: tuple[Site, ...]) -> Group:
        weights = [site.weights(self._reference) for site in sites]
        found = smoothed(sites, weights, self._plan[sites[0].op.name], self._ranges)
        grid = conv_grid if sites[0].is_conv else Grid.affine
        return Group(sites, found.multiplier, grid(found.low, found.high))

    def readers(self, tensor: str, *, conv: bool) -> list[Site]:
        """The planned convolutions, or matmuls, that read a tensor."""
        return self._readers.get((tensor, conv), [])

    def smoothing(self, site: Site) -> Group | None:
        """The group that an op is smoothed with."""
        return self._groups.get(site.op.name)

    def static(self, site: Site) -> Grid | None:
        """The grid on which an op wants its input as it is; None if it wants something else."""
        scheme = self._plan[site.op.name]
        if scheme.mode != "static" or site.op.name in self._groups:
            return None
        return activation_grid(site, scheme, self._ranges)
