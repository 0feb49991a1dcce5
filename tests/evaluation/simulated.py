"""Pairs of models that exist only as scores, with a drop that is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def squad_like(rng: np.random.Generator, n: int, drop: float, churn: float = 0.05) -> tuple[Floats, Floats]:
    """F1 per question of fp32 and of a candidate: eight in ten right, some in part; some answers trade
    places, then some are lost.

    The candidate loses ``drop`` of fp32's score, give or take one answer. ``churn`` is the share of answers
    that change for nothing.
    """
    u = rng.random(n)
    before = 100.0 * np.where(u < 0.8, 1.0, np.where(u < 0.9, rng.uniform(0.2, 0.9, n), 0.0))
    after = before.copy()
    traded = np.flatnonzero(rng.random(n) < churn)
    after[traded] = before[rng.permutation(traded)]
    hurt = rng.permutation(np.flatnonzero(after > 0))
    kept = after[hurt] * rng.choice([0.0, 0.5], hurt.size)
    lost = np.cumsum(after[hurt] - kept) <= drop * before.sum() - (before - after).sum()
    after[hurt[lost]] = kept[lost]
    return before, after


def flips(
    rng: np.random.Generator, n: int, right: float, lost: float, gained: float
) -> tuple[Floats, Floats]:
    """Answers of fp32 and of a candidate as 0 and 1; ``lost`` and ``gained`` are the chances that one flips
    each way.
    """
    u = rng.random(n)
    before = (u < right).astype(np.float64)
    after = before.copy()
    after[u < lost] = 0.0
    after[u > 1 - gained] = 1.0
    return before, after
