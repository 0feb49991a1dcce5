"""Watches a candidate being scored, and says when it can no longer pass.

referee = Referee(Standard(baseline_score, criterion), order, sizes, shuffled=True)
referee.p(seen, items)          # below ALPHA: stop

Where each item has a score of its own within known limits, the test of ``statistics.sequential`` is exact,
and may be asked at any time. For pseudo-values (F1, MCC, correlations) it is the cautious interval of
``statistics.intervals``, asked three times, each with a third of the risk. What counts as a failure is
:meth:`Criterion.limit`, as in the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octune.criterion import Criterion
from octune.score import Score
from octune.statistics.intervals import margins
from octune.statistics.sequential import ALPHA, SLACK, chance_of_passing

__all__ = ["Referee", "Standard", "is_mean"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

# Looks are this factor apart: often enough that hardly an item is scored needlessly, and seldom enough to
# cost nothing.
LOOK_GROWTH = 1.15
LOOK_SHARES = (0.25, 0.4, 0.65)
LEAST_ITEMS, LEAST_UNITS = 100, 20


@dataclass(frozen=True, slots=True)
class Standard:
    """What a candidate is measured by: fp32's score, and how much of it may be lost."""

    baseline: Score
    criterion: Criterion


def is_mean(score: Score) -> bool:
    """Whether the value is the mean of the items."""
    return score.items is not None and abs(float(score.items.mean()) - score.value) <= SLACK * max(
        1.0, abs(score.value)
    )


class Referee:
    """One candidate's referee. Items are seen in the given ``order``, in units of ``sizes`` items (single
    ones, or batches).
    """

    def __init__(self, standard: Standard, order: Ints, sizes: Ints, *, shuffled: bool) -> None:
        if standard.baseline.items is None:
            raise ValueError("a referee needs the baseline's items")
        self._criterion, self._baseline, self._items = (
            standard.criterion,
            standard.baseline,
            standard.baseline.items,
        )
        self._order, self._sizes, self._shuffled = order, sizes, shuffled
        self._starts = np.cumsum(sizes) - sizes
        self._allowed = standard.criterion.limit(standard.baseline.value)
        self._limits = standard.baseline.limits if is_mean(standard.baseline) else None
        self._floors = self._least()
        self._looked = 0
        self._looks = [round(share * order.size) for share in LOOK_SHARES]

    @property
    def exact(self) -> bool:
        """Whether the test needs no approximation."""
        return self._floors is not None

    @property
    def possible(self) -> bool:
        """Whether watching can lead to anything."""
        return self.exact or (self._shuffled and self._sizes.size >= LEAST_UNITS and self._limits is None)

    def due(self, seen: int) -> bool:
        """Whether it is time to look again, after this many items."""
        if seen >= self._order.size:
            return False
        if self.exact:
            return seen >= self._looked * LOOK_GROWTH
        return bool(self._looks) and seen >= max(self._looks[0], LEAST_ITEMS)

    def p(self, seen: int, found: Floats) -> float:
        """A bound on the chance that a candidate which passes looks this bad. It was ``found`` on the first
        ``seen`` items of the order.
        """
        self._looked = seen
        losses = self._criterion.loss(self._items[self._order[:seen]], found)
        units = int(np.searchsorted(self._starts, seen))
        starts, sizes = self._starts[:units], self._sizes[:units]
        if self._floors is not None and self._limits is not None:
            if found.min() < self._limits[0] or found.max() > self._limits[1]:
                self._floors = None  # the limits do not hold: from here on, nothing is certain
                return 1.0
            return chance_of_passing(
                np.add.reduceat(losses - self._allowed, starts), self._floors, shuffled=self._shuffled
            )
        return self._approximate(losses, starts, sizes)

    def _approximate(self, losses: Floats, starts: Ints, sizes: Ints) -> float:
        while self._looks and self._looks[0] <= self._looked:
            self._looks.pop(0)
        if self._limits is not None or not self._shuffled or sizes.size < LEAST_UNITS:
            return 1.0
        usual = float(sizes.mean())
        largest = float(sizes.max()) / usual
        lost, gained = self._criterion.largest_changes(self._baseline, losses)
        totals = np.add.reduceat(losses, starts) / usual
        low = (
            float(totals.mean())
            - margins(totals, ALPHA / len(LOOK_SHARES), (lost * largest, gained * largest)).down
        )
        return ALPHA if low > self._allowed else 1.0

    def _least(self) -> Floats | None:
        """The least that each unit can lose beyond what is allowed: no item can be better than the best
        possible score.
        """
        if self._limits is None:
            return None
        items = self._items[self._order]
        best = self._limits[1] if self._criterion.higher_is_better else self._limits[0]
        floors = self._criterion.loss(items, np.full_like(items, best))
        return np.add.reduceat(floors - self._allowed, self._starts) if np.isfinite(floors).all() else None
