"""Smoothing: outlier channels of an activation are made smaller, and the weights that read them larger by as much.

    found = smoothing(stats, weight)          # weight: (outputs, inputs)
    found.multiplier                          # x * multiplier is what gets quantized
    weight / found.multiplier                 # is what reads it
    found.low, found.high                     # the range of the smoothed input

One channel that is a hundred times larger than the rest takes the range of all of them. Weights have a scale for every output, and
can take some of it. How much moves over (alpha, as in SmoothQuant by Xiao et al., 2023) is chosen by the expected error of the
product, from the largest value of each channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octune.calibration.observer import TensorStats

__all__ = ["SMOOTH", "Smoothing", "smoothing"]

SMOOTH = "smooth"
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Smoothing:
    """What to multiply every channel of the input by, and the range that the product then has."""

    multiplier: npt.NDArray[np.float32]
    low: float
    high: float


def smoothing(stats: TensorStats, weight: npt.NDArray[np.float32]) -> Smoothing:
    """The smoothing with the least expected error for a linear op with this input and this weight."""
    inputs = np.maximum(stats.channel_max.astype(np.float64), 1e-5)
    weights = np.maximum(np.abs(weight).max(axis=0).astype(np.float64), 1e-5)
    candidates = [_multiplier(inputs, weights, alpha) for alpha in ALPHAS]
    best = min(candidates, key=lambda multiplier: _expected_error(inputs, weight.astype(np.float64), multiplier))
    reach = float((inputs * best).max())
    return Smoothing(best.astype(np.float32), -reach if stats.low < 0 else 0.0, reach if stats.high > 0 else 0.0)


def _multiplier(inputs: Floats, weights: Floats, alpha: float) -> Floats:
    multiplier = weights ** (1 - alpha) / inputs**alpha
    return np.asarray(multiplier / np.exp(np.log(multiplier).mean()), dtype=np.float64)


def _expected_error(inputs: Floats, weight: Floats, multiplier: Floats) -> float:
    """Rounding of the input, as the weights magnify it, and of the weights, as the input magnifies it."""
    smoothed, moved = inputs * multiplier, weight / multiplier
    input_step = 2 * smoothed.max() / 255
    weight_step = np.abs(moved).max(axis=1) / 127
    # A channel's typical value is some fixed share of its largest; a third is that of a normal distribution.
    return float(input_step**2 * np.square(moved).sum() + np.square(weight_step).sum() * np.square(smoothed / 3).sum())
