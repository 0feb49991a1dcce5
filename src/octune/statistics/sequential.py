"""Can this candidate still pass? An answer that may be asked for at any time, on any part of the data.

    p = chance_of_passing(excess=losses_so_far - allowed, floors=least_losses - allowed)
    if p < ALPHA: stop

The question is about the data at hand: would the score over all of it fail? Items are seen in random order,
so those seen are a draw without replacement, and fp32's results are known for all of them. A gambler bets on
"more is lost than is allowed" at odds that are fair if the candidate just passes. His capital is then a
martingale: the chance that it ever grows 50-fold is at most 2 % (Ville), however often one looks. This is the
test by betting of Waudby-Smith and Ramdas, with a mixture of four fixed shares of the capital as stakes. It
needs no distribution, only the least that each item can lose: an item that fp32 has right cannot gain.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ALPHA", "SLACK", "chance_of_passing"]

Floats: TypeAlias = npt.NDArray[np.float64]

ALPHA = 0.02
STAKES = np.array([0.05, 0.15, 0.4, 0.9])
SLACK = 1e-9  # rounding errors of this size, relative to what is compared, never decide


def chance_of_passing(excess: Floats, floors: Floats, *, shuffled: bool = True) -> float:
    """A bound on the chance that a candidate which passes would look this bad at some time; 0 when it can no
    longer pass.

    ``excess`` is what each unit seen so far (an item, or a batch) lost beyond what it may, in the order of
    the draw; ``floors`` is the least that it can be, for all units in that order. The candidate passes if the
    sum over all units is at most 0. Unless the order is ``shuffled``, only the floors of the rest are known.
    """
    seen, count = excess.size, floors.size
    slack = SLACK * float(np.abs(floors).sum() + np.abs(excess).sum())
    if float(excess.sum()) + float(floors[seen:].sum()) > slack:
        return 0.0
    if not shuffled or seen == 0 or seen == count:
        return 1.0
    least = float(floors.min())
    over = excess - least  # never negative, so a share of the capital is all that a bet can lose
    # What the units not yet seen must have on average, if all of them together are to just pass.
    spent = np.concatenate([[0.0], np.cumsum(over)[:-1]])
    fair = (slack - count * least - spent) / (count - np.arange(seen))
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.where(fair > 0, over / fair, 1.0)
    capital = np.logaddexp.reduce(
        np.cumsum(np.log1p(STAKES[:, None] * (odds - 1.0)), axis=1), axis=0
    ) - np.log(STAKES.size)
    return float(min(1.0, np.exp(-capital.max())))
