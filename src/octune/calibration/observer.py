"""Streaming statistics of one activation: exact extremes, a histogram, the largest value and the mean of each
channel.

    observer = Observer()
    for array in arrays:
        observer.update(array)
    observer.merge(another)     # of what came after that
    observer.stats()            # -> TensorStats

Memory is constant: the histogram has a fixed number of bins and widens by merging neighbours when a value
falls outside. The extremes see every value; the histogram sees an evenly spaced sample of each batch, which
is what it takes to place a clipping point and costs next to nothing.

However a stream is cut into parts, merging what was seen of each gives what one observer sees of all, to the
bit. So the histogram ends at a power of two, where a bin of any width is made of whole bins of half that
width; its counts are whole numbers; and sums keep what rounding drops.
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
        self._channel_sum, self._dropped = np.zeros(0), np.zeros(0)
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
        self._widen(_beyond(max(-low, high, 1e-12)))
        flat = array.reshape(-1)
        every = max(1, flat.size // SAMPLE)
        # the width of a histogram of the largest float32s is not a float32
        sample = flat[::every].astype(np.float64)
        # All bins are equally wide, so where a value belongs is one multiplication, which is exact; numpy's
        # histogram takes many times longer.
        places = np.floor(sample * (BINS / 2 / self._edge)).astype(np.intp)
        np.clip(places + BINS // 2, 0, BINS - 1, out=places)  # only float64s lie beyond
        self._counts += every * np.bincount(places, minlength=BINS)
        sums = array.sum(axis=axes, dtype=np.float64)
        channels = np.maximum(highs, -lows).astype(np.float32)
        self._add_channels(channels, sums, np.zeros_like(sums), array.size // max(1, channels.size))

    def merge(self, later: Observer) -> None:
        """Add what another has seen, of arrays that come after those of this one."""
        if later._empty:
            return
        self.touch(later._shape)
        self._finite &= later._finite
        if later._edge == 0.0 or later._channel_max is None:  # nothing but shapes, or what is not finite
            return
        self._low, self._high = min(self._low, later._low), max(self._high, later._high)
        self._widen(later._edge)
        self._counts += _widened(later._counts, later._edge, self._edge)
        self._add_channels(later._channel_max, later._channel_sum, later._dropped, later._channel_count)

    def _add_channels(self, peaks: npt.NDArray[np.float32], sums: Array, dropped: Array, count: int) -> None:
        if self._channel_max is None:
            self._channel_max, self._channel_sum, self._dropped = peaks.copy(), sums.copy(), dropped.copy()
        elif self._channel_max.shape != peaks.shape:
            # An axis that changes its length is not an axis of channels: there are none.
            self._channel_max = np.zeros(0, np.float32)
            self._channel_sum, self._dropped = np.zeros(0), np.zeros(0)
        else:
            np.maximum(self._channel_max, peaks, out=self._channel_max)
            before = self._channel_sum
            self._channel_sum = before + sums
            # What rounding drops of a sum, itself without an error.
            kept = self._channel_sum - before
            self._dropped += (before - (self._channel_sum - kept)) + (sums - kept) + dropped
        self._channel_count += count

    def _widen(self, edge: float) -> None:
        if edge > self._edge:
            self._counts = _widened(self._counts, self._edge or edge, edge)
            self._edge = edge

    def stats(self) -> TensorStats | None:
        """What was seen, or None if nothing was."""
        if self._empty:
            return None
        low, high = (self._low, self._high) if self._low <= self._high else (0.0, 0.0)
        channels = np.zeros(0, np.float32) if self._channel_max is None else self._channel_max
        mean = ((self._channel_sum + self._dropped) / max(1, self._channel_count)).astype(np.float32)
        return TensorStats(
            low, high, self._shape, self._counts.copy(), self._edge, channels.copy(), self._finite, mean
        )


def _beyond(reach: float) -> float:
    """The first power of two that is larger."""
    return math.ldexp(1.0, min(math.frexp(reach)[1], 1023))


def _widened(counts: npt.NDArray[np.float64], edge: float, wanted: float) -> npt.NDArray[np.float64]:
    """A histogram that ends at ``edge`` in the bins of one that ends further out."""
    while edge < wanted:
        # Doubling the edge around zero: two old bins become one new bin, in the middle half of the histogram.
        merged = np.zeros(BINS)
        merged[BINS // 4 : 3 * BINS // 4] = counts.reshape(-1, 2).sum(axis=1)
        counts, edge = merged, 2 * edge
    return counts
