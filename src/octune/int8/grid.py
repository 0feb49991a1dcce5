"""The grid of an activation: which number every 8-bit level stands for.

grid = Grid.affine(-1.0, 3.0)       # uint8 with a zero point; Grid.symmetric(3.0) is int8 around zero
grid.quantize(x)                    # the levels
grid.dequantize(levels)             # the numbers that they stand for
grid.round_trip(x)                  # x as an int8 kernel reads it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.int8.weights import LARGEST

__all__ = ["Grid"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Grid:
    """uint8 levels from 0 to 255, or int8 levels around zero (``signed``)."""

    scale: float
    zero_point: int = 0
    signed: bool = False

    @classmethod
    def affine(cls, low: float, high: float) -> Grid:
        """uint8 over [low, high], widened to hold zero.

        Zero is exactly a level: padding and ReLU produce it, and an offset there would be added to every
        output.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255
        # Below this the reciprocal of a float32 scale overflows; such a tensor is zero for every purpose.
        if scale <= 1e-30:
            return cls(1.0)
        return cls(scale, int(np.clip(round(-low / scale), 0, 255)))

    @classmethod
    def symmetric(cls, reach: float, largest: int = LARGEST) -> Grid:
        """int8 around zero; ``largest`` is the level that stands for ``reach``."""
        return cls(reach / largest or 1.0, signed=True)

    @property
    def least(self) -> int:
        """The lowest level, counted from that of zero."""
        return -128 if self.signed else -self.zero_point

    @property
    def most(self) -> int:
        """The highest level, counted from that of zero."""
        return 127 if self.signed else 255 - self.zero_point

    @property
    def low(self) -> float:
        """The lower end of the range; around zero, as far from it as the upper one."""
        return -self.high if self.signed else self.least * self.scale

    @property
    def high(self) -> float:
        """The upper end of the range."""
        return self.most * self.scale

    def quantize(self, x: Array) -> Array:
        """The levels that stand for x."""
        return (self._steps(x) + self.zero_point).astype(np.int8 if self.signed else np.uint8)

    def dequantize(self, levels: Array) -> Array:
        """The numbers that levels stand for, in float64; ``levels`` may be any view of the same bytes."""
        integers = np.asarray(levels).view(np.int8 if self.signed else np.uint8).astype(np.float64)
        return np.asarray((integers - self.zero_point) * self.scale)

    def round_trip(self, x: Array) -> Array:
        """x quantized and back, in float32: what an exact kernel reads."""
        return np.asarray(self._steps(x) * self.scale, np.float32)

    def _steps(self, x: Array) -> Array:
        return np.asarray(np.clip(np.rint(x / self.scale), self.least, self.most))
