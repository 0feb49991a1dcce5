"""How far a mean of paired losses could be off, also when hardly any item changed.

    margin = margins(fp32_items - int8_items, tail=0.05, most=(1.0, 1.0))
    drop + margin.up             # with 95 % confidence the true drop is no higher

The normal interval fails where few answers flip: with none it has no width at all, and a model that loses 1 %
of its answers shows none lost in 100 items one time in three. So losses and gains are bounded separately, by
the exact limits of Clopper and Pearson for how many items lose, weighted by how much each lost (Stringer's
bound, as auditors use it), and combined by the squares of their margins and their correlation (MOVER: Zou and
Donner). Where all items change it comes close to the normal interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Margins", "margins"]

Floats: TypeAlias = npt.NDArray[np.float64]
# Beyond this many, limits are interpolated; they lie on a smooth curve.
EXACT = 256


@dataclass(frozen=True, slots=True)
class Margins:
    """How far below and above its estimate a mean may lie; ``unseen_*`` is the part that is due to losses
    not seen yet.

    That part shrinks with the number of items, the rest with its square root.
    """

    down: float
    up: float
    unseen_down: float
    unseen_up: float


def margins(losses: Floats, tail: float, most: tuple[float, float], credit: Floats | None = None) -> Margins:
    """Margins of the mean of ``losses``, each missed by the truth with a chance of at most ``tail``.

    ``most`` is the most that one item can lose, and gain. ``credit`` is what each item is allowed to lose
    where that is itself an estimate, such as 1 % of what fp32 scored on it: the margins are then those of the
    mean of ``losses - credit``.
    """
    lost, gained = np.maximum(losses, 0.0), np.maximum(-losses, 0.0)
    parts = [lost, gained] if credit is None else [lost, gained, credit]
    bounds = [_bounded(lost, tail, most[0]), _bounded(gained, tail, most[1])]
    if credit is not None:
        from scipy import special  # not before an interval is asked for; scipy.stats takes four times as long

        normal = (
            float(-special.ndtri(tail) * credit.std(ddof=1) / np.sqrt(credit.size))
            if credit.size > 1
            else math.inf
        )
        bounds.append((normal, normal, 0.0))
    (lost_down, lost_up, unseen_lost), (gained_down, gained_up, unseen_gained), *rest = bounds
    others = [-bound[0] for bound in rest]
    related = _correlations(np.stack(parts))
    return Margins(
        _combined(np.array([lost_down, -gained_up, *others]), related),
        _combined(np.array([lost_up, -gained_down, *others]), related),
        unseen_gained,
        unseen_lost,
    )


def _bounded(values: Floats, tail: float, most: float) -> tuple[float, float, float]:
    """How far below and above the mean of values >= 0, few of which may differ from 0, the true mean may lie;
    and the unseen part.
    """
    seen = np.sort(values[values > 0])[::-1]
    most = max(most, float(seen[0]) if seen.size else 0.0)
    low, high = _count_limits(values.size, seen.size, tail)
    mean = float(seen.sum()) / values.size
    unseen = most * float(high[0])
    # The largest values get the first steps, which are the widest upwards and the narrowest downwards:
    # cautious both ways.
    return mean - float(np.diff(low) @ seen), unseen + float(np.diff(high) @ seen) - mean, unseen


def _count_limits(n: int, most: int, tail: float) -> tuple[Floats, Floats]:
    """Clopper and Pearson's lower and upper limits of a share, for 0, 1, ..., ``most`` of ``n`` items."""
    from scipy import special

    counts = np.arange(most + 1)
    places = counts
    if most > 2 * EXACT:
        places = np.unique(
            np.concatenate([counts[:EXACT], np.geomspace(EXACT, most, EXACT).astype(np.int64), [most]])
        )
    low = np.where(places > 0, special.betaincinv(places, n - places + 1, tail), 0.0)
    high = np.where(places < n, special.betainccinv(places + 1, n - places, tail), 1.0)
    return np.interp(counts, places, low), np.interp(counts, places, high)


def _correlations(parts: Floats) -> Floats:
    """Correlations between the rows; a constant row correlates with no other."""
    centred = parts - parts.mean(axis=1, keepdims=True)
    most = np.abs(centred).max(axis=1, keepdims=True)
    # first scaled so that no square vanishes or overflows
    unit = centred / np.where(most > 0, most, 1.0)
    lengths = np.linalg.norm(unit, axis=1, keepdims=True)
    unit /= np.where(lengths > 0, lengths, 1.0)
    related = np.clip(unit @ unit.T, -1.0, 1.0)
    np.fill_diagonal(related, 1.0)
    return np.asarray(related)


def _combined(bounds: Floats, related: Floats) -> float:
    if not np.isfinite(bounds).all():
        return math.inf
    return math.sqrt(max(float(bounds @ related @ bounds), 0.0))
