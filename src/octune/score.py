"""What an evaluation says: a value, how many items it rests on, and how far it could be off.

    Score.of(0.91)                          a black-box number: no items, no interval
    Score.from_items([1, 0, 1, 1])          a mean of per-item scores, with a 95 % interval
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Score"]

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one model on one evaluation set.

    ``items`` holds one number per item whose mean is the value (for metrics that are no mean, such as F1, the
    jackknife's pseudo-values), so that two models can be compared item by item. ``hits`` says which items were
    answered right, where that has a meaning: it is what flips are counted on.
    """

    value: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    items: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    hits: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, value: float) -> Score:
        """A score about which nothing but its value is known."""
        return cls(float(value))

    @classmethod
    def from_items(
        cls,
        items: Sequence[float] | npt.NDArray[Any],
        *,
        value: float | None = None,
        hits: Sequence[float] | npt.NDArray[Any] | None = None,
    ) -> Score:
        """A score that is the mean of per-item scores (or of pseudo-values, when ``value`` is given)."""
        array = np.asarray(items, dtype=np.float64)
        mean = float(array.mean()) if value is None else float(value)
        half = Z95 * float(array.std(ddof=1)) / math.sqrt(array.size) if array.size > 1 else math.inf
        return cls(mean, int(array.size), mean - half, mean + half, array, None if hits is None else np.asarray(hits, dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """Plain data; infinities become null, because JSON has none."""
        data: dict[str, Any] = {"value": self.value, "n": self.n, "low": _finite(self.low), "high": _finite(self.high)}
        if self.items is not None:
            data["items"] = [round(float(item), 6) for item in self.items]
        if self.hits is not None:
            data["hits"] = [round(float(hit), 6) for hit in self.hits]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Score:
        """The inverse of :meth:`to_json`."""
        arrays = {key: np.asarray(data[key], dtype=np.float64) for key in ("items", "hits") if key in data}
        return cls(data["value"], data["n"], data["low"], data["high"], **arrays)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.4f}"
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] n={self.n}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
