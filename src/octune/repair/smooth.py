"""Smoothing: outlier channels of an activation are made smaller, and the weights that read them larger by the
same factor.

    found = smoothing(stats, weight)          # weight: (outputs, inputs), or (outputs, inputs of a group,
                                              height, width)
    found.multiplier                          # x * multiplier, channel by channel, is what gets quantized
    weight / found.multiplier                 # is what reads it
    found.low, found.high                     # the range of the smoothed input

One channel that is a hundred times larger than the rest takes the range of all of them. Weights have a scale
for every output, and can take some of it. How much moves over (alpha, as in SmoothQuant by Xiao et al., 2023)
is chosen by the expected error of the product, from the largest value of each channel. In a chain of
convolutions this is cross-layer equalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.calibration.observer import TensorStats
from octune.repair.base import Repair, Smoothing

__all__ = ["SMOOTH", "shared_smoothing", "smoothing"]

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Floats = npt.NDArray[np.float64]


def smoothing(stats: TensorStats, weight: npt.NDArray[Any], groups: int = 1) -> Smoothing:
    """The smoothing with the least expected error for a linear op or a convolution with this input and this
    weight.
    """
    # (groups, outputs of a group, inputs of a group, places of the kernel)
    parts = weight.astype(np.float32).reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    inputs = np.maximum(stats.channel_max.astype(np.float64), 1e-5)
    # All that is needed of the weights, so that trying an alpha is one pass over them: peaks by place, sums
    # of squares by channel.
    peaks, squares = np.abs(parts).max(axis=3), np.square(parts, dtype=np.float64).sum(axis=(1, 3))
    weights = np.maximum(peaks.max(axis=1).reshape(-1).astype(np.float64), 1e-5)
    candidates = [_multiplier(inputs, weights, alpha) for alpha in ALPHAS]
    best = min(
        candidates, key=lambda multiplier: _expected_error(inputs, peaks, squares, parts.shape[3], multiplier)
    )
    reach = float((inputs * best).max())
    return Smoothing(
        best.astype(np.float32), -reach if stats.low < 0 else 0.0, reach if stats.high > 0 else 0.0
    )


def shared_smoothing(stats: TensorStats, weights: Sequence[tuple[npt.NDArray[Any], int]]) -> Smoothing:
    """One smoothing for all ops that read a tensor, so that it is still quantized once for all of them.
    ``weights`` are theirs, each with its number of groups.
    """
    if len(weights) == 1:
        return smoothing(stats, *weights[0])
    return smoothing(stats, np.concatenate([_peaks(weight, groups) for weight, groups in weights]))


def _peaks(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """(outputs, inputs): the largest weight of every kernel, which stands for it where several ops are
    smoothed together.
    """
    outputs, inputs = weight.shape[:2]
    peaks = np.abs(weight).reshape(outputs, inputs, -1).max(axis=2)
    wide = np.zeros((outputs, groups, inputs), peaks.dtype)
    wide[np.arange(outputs), np.arange(outputs) // (outputs // groups)] = peaks
    return wide.reshape(outputs, -1)


def _multiplier(inputs: Floats, weights: Floats, alpha: float) -> Floats:
    multiplier = weights ** (1 - alpha) / inputs**alpha
    return np.asarray(multiplier / np.exp(np.log(multiplier).mean()), dtype=np.float64)


def _expected_error(
    inputs: Floats, peaks: npt.NDArray[np.float32], squares: Floats, places: int, multiplier: Floats
) -> float:
    """Rounding of the input, as the weights magnify it, and of the weights, as the input magnifies it."""
    groups, _, width = peaks.shape
    smoothed, divisor = (inputs * multiplier).reshape(groups, width), multiplier.reshape(groups, width)
    input_step = 2 * smoothed.max() / 255
    weight_step = (peaks / divisor[:, None, :].astype(np.float32)).max(axis=2).astype(np.float64) / 127
    # A channel's typical value is some fixed share of its largest; a third is that of a normal distribution.
    typical = places * np.square(smoothed / 3).sum(axis=1)
    return float(
        input_step**2 * (squares / np.square(divisor)).sum()
        + (np.square(weight_step).sum(axis=1) * typical).sum()
    )


SMOOTH = Repair("smooth", smoothing=shared_smoothing)
