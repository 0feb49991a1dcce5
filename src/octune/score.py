"""What an evaluation says: a value, how many items it is based on, and how far off it could be.

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

from octune.errors import EvaluationError

__all__ = ["Score"]

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one model on one evaluation set.

    ``items`` holds one number per item whose mean is the value (for metrics that are not means, such as F1,
    the jackknife's pseudo-values), so that two models can be compared item by item. ``hits`` says which items
    were answered right, where that has a meaning: it is what flips are counted on. ``limits`` are the
    smallest and the largest score that an item can have, where the value is the mean of the items and they
    are known (infinite: no such limit). ``span`` is how far one changed answer can move a pseudo-value, where
    the items are pseudo-values.

    A score that was stopped early, because it could no longer pass, has a ``total`` of more than its ``n``
    items. Its ``index`` says which items of the full score it has, and ``p`` bounds the chance that a
    candidate which passes would be stopped like this.
    """

    value: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    items: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    hits: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    limits: tuple[float, float] | None = field(default=None, repr=False)
    span: float | None = field(default=None, repr=False)
    total: int | None = None
    p: float | None = None
    index: npt.NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Scores go into a journal as JSON, which knows no numpy numbers; and users may bring items as a list.
        object.__setattr__(self, "value", float(self.value))
        for name in ("items", "hits"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.limits is not None:
            object.__setattr__(self, "limits", (float(self.limits[0]), float(self.limits[1])))

    @property
    def partial(self) -> bool:
        """Whether scoring was stopped before all items were seen."""
        return self.total is not None

    @classmethod
    def of(cls, value: float) -> Score:
        """A score of which only the value is known."""
        return cls(float(value))

    @classmethod
    def from_items(
        cls,
        items: Sequence[float] | npt.NDArray[Any],
        *,
        value: float | None = None,
        hits: Sequence[float] | npt.NDArray[Any] | None = None,
        limits: tuple[float, float] | None = None,
        span: float | None = None,
    ) -> Score:
        """A score that is the mean of per-item scores (or of pseudo-values, when ``value`` is given)."""
        array = np.asarray(items, dtype=np.float64)
        if array.ndim != 1 or array.size == 0:
            raise EvaluationError(
                "A score needs one number for each of at least one item. Got an array of shape "
                f"{array.shape} instead."
            )
        mean = float(array.mean()) if value is None else float(value)
        right = None if hits is None else np.asarray(hits, dtype=np.float64)
        if array.size == 1:  # a single item says nothing about how far off it could be
            return cls(mean, 1, None, None, array, right, limits, span)
        half = Z95 * float(array.std(ddof=1)) / math.sqrt(array.size)
        return cls(mean, int(array.size), mean - half, mean + half, array, right, limits, span)

    def to_json(self) -> dict[str, Any]:
        """Plain data; infinities become null, because JSON has none. Items are kept to the last digit: a
        resumed run pairs them.
        """
        data: dict[str, Any] = {
            "value": self.value,
            "n": self.n,
            "low": _finite(self.low),
            "high": _finite(self.high),
        }
        for name in ("items", "hits", "index"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name).tolist()
        if self.limits is not None:
            data["limits"] = [_finite(limit) for limit in self.limits]
        if self.span is not None:
            data["span"] = self.span
        return data if self.total is None else data | {"total": self.total, "p": self.p}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Score:
        """The inverse of :meth:`to_json`."""
        rest: dict[str, Any] = {
            key: data[key] for key in ("items", "hits", "span", "total", "p") if key in data
        }
        if "limits" in data:
            low, high = data["limits"]
            rest["limits"] = (-math.inf if low is None else low, math.inf if high is None else high)
        if "index" in data:
            rest["index"] = np.asarray(data["index"], dtype=np.int64)
        return cls(data["value"], data["n"], data["low"], data["high"], **rest)

    def __str__(self) -> str:
        of = f" of {self.total}" if self.partial else ""
        if self.low is None or self.high is None:
            return f"{self.value:.4f}" + (f" n={self.n}{of}" if of else "")
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] n={self.n}{of}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
