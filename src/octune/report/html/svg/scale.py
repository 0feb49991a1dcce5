"""From values to places on a line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Linear", "Log", "Scale"]


@dataclass(frozen=True, slots=True)
class Linear:
    """Values from ``low`` to ``high`` on places from ``begin`` to ``end``."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], begin: float, end: float, pad: float = 0.08) -> Linear:
        """A scale that shows these values with some room on both sides."""
        some = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(some), max(some)
        room = (high - low) * pad or abs(high) * 0.1 or 1.0
        return cls(low - room, high + room, begin, end)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1.0)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round numbers within the scale."""
        span = self.high - self.low
        raw = span / max(1, wanted)
        if raw <= 0 or not math.isfinite(raw):
            return [self.low]
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """The same for positive values that span many orders; what is below ``low`` stands at its place."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], begin: float, end: float) -> Log:
        """A scale of whole powers of ten around these values."""
        some = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        low, high = math.floor(math.log10(min(some))), math.ceil(math.log10(max(some)))
        return cls(10.0**low, 10.0 ** max(high, low + 1), begin, end)

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        inside = min(max(value, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def __call__(self, value: float) -> float:
        return self.begin + self.share(value) * (self.end - self.begin)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Powers of ten within the scale."""
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        step = max(1, math.ceil((last - first) / max(1, wanted)))
        return [10.0**power for power in range(first, last + 1, step)]


Scale = Linear | Log
