"""Bias correction: what rounding the weights adds to every output on average is subtracted from its bias.

    BIAS.bias(stats, weight, dequantized, groups)       # is added to the bias

Rounding errors of weights do not average out over an input whose channels have a mean: each output is shifted
by a constant, and the constants of many ops add up, which noise does not. The shift is known: (dequantized
weight - weight) times the mean input. It costs nothing when the model runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octune.calibration.observer import TensorStats
from octune.repair.base import Repair

__all__ = ["BIAS", "bias_correction"]


def bias_correction(
    stats: TensorStats, weight: npt.NDArray[Any], dequantized: npt.NDArray[Any], groups: int = 1
) -> npt.NDArray[np.float32]:
    """What to add to the bias of a linear op or a convolution. Weights are (outputs, inputs of a group, ...).

    No correction where calibration saw no means (no data, or another number of channels).
    """
    lost = np.asarray(weight, np.float64) - np.asarray(dequantized, np.float64)
    outputs, inputs = lost.shape[:2]
    if stats.channel_mean.size != inputs * groups:
        return np.zeros(outputs, np.float32)
    # Every place of a convolution's kernel meets the same channel means; the border, where some meet padding,
    # is ignored.
    by_channel = lost.reshape(groups, outputs // groups, inputs, -1).sum(axis=3)
    means = stats.channel_mean.astype(np.float64).reshape(groups, inputs)
    shift: npt.NDArray[np.float64] = np.einsum("goi,gi->go", by_channel, means)
    return shift.reshape(outputs).astype(np.float32)


BIAS = Repair("bias", bias=bias_correction)
