"""Streaming statistics of one activation: exact extremes, a histogram, the largest value and the mean of each
channel.

    observer = Observer()
    for array in arrays:
        observer.update(array)
    observer.stats()            # -> TensorStats

Memory is constant: the histogram has a fixed number of bins and widens by merging neighbours when a value
falls outside. The extremes see every value; the histogram sees an evenly spaced sample of each batch, which
is what it takes to place a clipping point and costs next to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Observer", "TensorStats"]

BINS = 2048
SAMPLE = 1 << 16

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorStats:
    """What calibration saw of one activation. ``shape`` is the largest input seen, for timing the op."""

    low: float
    high: float
    shape: tuple[int, ...]
    counts: npt.NDArray[np.float64]
    edge: float
    channel_max: npt.NDArray[np.float32]
    finite: bool = True
    channel_mean: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    # ranges, by method
    chosen: dict[str, tuple[float, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def centres(self) -> npt.NDArray[np.float64]:
        """The middle of every histogram bin."""
        width = 2 * self.edge / BINS
        return np.asarray(-self.edge + width * (np.arange(BINS) + 0.5), dtype=np.float64)


class Observer:
    """Collects :class:`TensorStats` from a stream of arrays."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf
        self._counts = np.zeros(BINS)
        self._edge = 0.0
        self._channel_max: npt.NDArray[np.float32] | None = None
        self._channel_sum = np.zeros(0)
        self._channel_count = 0
        self._shape: tuple[int, ...] = ()
        self._finite = True
        self._empty = True

    def touch(self, shape: tuple[int, ...]) -> None:
        """Note that the op ran on an input of that shape; for inputs that need no range, such as token
        ids.
        """
        # ran on nothing (an expert without tokens, say): nothing was seen, and nothing can be timed
        if math.prod(shape) == 0:
            return
        self._empty = False
        if math.prod(shape) > math.prod(self._shape or (0,)):
            self._shape = tuple(shape)

    def update(self, array: Array, *, channel_axis: int = -1, shape: tuple[int, ...] | None = None) -> None:
        """Add one batch. ``shape`` is the op's real input shape when ``array`` is only a part of it."""
        if array.size == 0:  # all of it was padding
            return
        self.touch(array.shape if shape is None else shape)
        axes = tuple(axis for axis in range(array.ndim) if axis != channel_axis % array.ndim)
        highs, lows = array.max(axis=axes), array.min(axis=axes)
        low, high = float(lows.min()), float(highs.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            self._finite = False
            return
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._widen(max(-low, high, 1e-12))
        flat = array.reshape(-1)
        # the width of a histogram of the largest float32s is not a float32
        sample = flat[:: max(1, flat.size // SAMPLE)].astype(np.float64)
        # All bins are equally wide, so where a value belongs is one multiplication; numpy's histogram takes
        # many times longer.
        places = ((sample + self._edge) * (BINS / (2 * self._edge))).astype(np.intp)
        self._counts += (
            flat.size / sample.size * np.bincount(np.clip(places, 0, BINS - 1, out=places), minlength=BINS)
        )
        channels = np.maximum(highs, -lows).astype(np.float32)
        if self._channel_max is None or self._channel_max.shape != channels.shape:
            self._channel_max, self._channel_sum, self._channel_count = channels, np.zeros(channels.size), 0
        else:
            np.maximum(self._channel_max, channels, out=self._channel_max)
        self._channel_sum += array.sum(axis=axes, dtype=np.float64)
        self._channel_count += array.size // max(1, channels.size)

    def _widen(self, reach: float) -> None:
        if self._edge == 0.0:
            self._edge = reach
        while reach > self._edge:
            # Doubling the edge around zero: two old bins become one new bin, in the middle half of the
            # histogram.
            merged = np.zeros(BINS)
            merged[BINS // 4 : 3 * BINS // 4] = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts, self._edge = merged, 2 * self._edge

    def stats(self) -> TensorStats | None:
        """What was seen, or None if nothing was."""
        if self._empty:
            return None
        low, high = (self._low, self._high) if self._low <= self._high else (0.0, 0.0)
        channels = np.zeros(0, np.float32) if self._channel_max is None else self._channel_max
        mean = (self._channel_sum / max(1, self._channel_count)).astype(np.float32)
        return TensorStats(
            low, high, self._shape, self._counts.copy(), self._edge, channels.copy(), self._finite, mean
        )
