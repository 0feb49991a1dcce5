"""How much accuracy may be lost, and what an evaluation says about it.

criterion = Relative(0.01)                       # at most 1 % of the baseline's score
criterion = Absolute(0.5, higher_is_better=False)
criterion.judge(baseline_score, score)           # -> Verdict
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from octune.errors import ConfigError
from octune.score import Z95, Score

__all__ = ["Absolute", "Criterion", "Relative", "Verdict"]

Outcome = Literal["pass", "fail"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one score says against the criterion.

    ``drop`` is the loss against the baseline (positive is worse), ``allowed`` the largest loss that passes; both
    in the metric's own unit. ``low`` and ``high`` bound the drop with 95 % confidence when both scores have
    per-item results; ``lost`` and ``gained`` count the answers that flipped. ``undecidable`` says that the interval
    of the drop holds the limit: with this many items, luck alone could have decided.
    """

    outcome: Outcome
    drop: float
    allowed: float
    low: float | None = None
    high: float | None = None
    lost: int | None = None
    gained: int | None = None
    n: int | None = None

    @property
    def passed(self) -> bool:
        """Whether the point estimate meets the criterion."""
        return self.outcome == "pass"

    @property
    def undecidable(self) -> bool:
        """Whether the limit lies inside the interval of the drop."""
        return self.low is not None and self.high is not None and self.low <= self.allowed < self.high

    @property
    def items_needed(self) -> int | None:
        """About how many items would decide, if the drop stayed what it is; None when decided or unknown."""
        if not self.undecidable or self.n is None or self.low is None or self.high is None:
            return None
        distance = abs(self.allowed - self.drop)
        if distance == 0 or not math.isfinite(self.high - self.low):
            return None
        return math.ceil(self.n * (((self.high - self.low) / 2) / distance) ** 2)

    def __str__(self) -> str:
        text = f"{self.outcome}: drop {self.drop:+.4f} of {self.allowed:.4f} allowed"
        if self.low is not None:
            text += f" [{self.low:+.4f}, {self.high:+.4f}]"
        if self.lost is not None:
            text += f", {self.lost} answers lost and {self.gained} gained of {self.n}"
        if self.undecidable:
            text += ", undecidable with this many items"
            if self.items_needed is not None:
                text += f" (about {self.items_needed} would decide)"
        return text


@dataclass(frozen=True)
class Criterion(ABC):
    """Base of :class:`Relative` and :class:`Absolute`."""

    tolerance: float
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float) or not math.isfinite(self.tolerance):
            raise ConfigError(f"The tolerance of a criterion must be a finite number. Got {self.tolerance!r} instead.")

    @abstractmethod
    def allowed(self, baseline: float) -> float:
        """The largest loss that passes; negative demands a gain."""

    def loss(self, baseline: float, value: float) -> float:
        """How much worse ``value`` is than ``baseline``."""
        return baseline - value if self.higher_is_better else value - baseline

    def judge(self, baseline: Score, score: Score) -> Verdict:
        """Compare a score with the baseline's, item by item when both have items."""
        drop, allowed = self.loss(baseline.value, score.value), self.allowed(baseline.value)
        # A hair of slack: 0.9 - 0.891 is 0.009000000000000008, and a user who allows 1 % means to pass here. It goes with the scores:
        # a fixed amount would let anything pass where the scores themselves are tiny, such as a mean squared error.
        outcome: Outcome = "pass" if drop <= allowed + 1e-9 * max(abs(baseline.value), abs(score.value)) else "fail"
        if baseline.items is None or score.items is None or baseline.items.shape != score.items.shape:
            return Verdict(outcome, drop, allowed, n=score.n)
        sign = 1.0 if self.higher_is_better else -1.0
        losses = sign * (baseline.items - score.items)
        half = Z95 * float(losses.std(ddof=1)) / math.sqrt(losses.size) if losses.size > 1 else math.inf
        lost = gained = None
        if baseline.hits is not None and score.hits is not None:
            lost = int(np.sum(baseline.hits > score.hits))
            gained = int(np.sum(baseline.hits < score.hits))
        return Verdict(outcome, drop, allowed, drop - half, drop + half, lost, gained, int(losses.size))

    def to_json(self) -> dict[str, Any]:
        """Plain data, in the words of the configuration."""
        return {type(self).__name__.lower(): self.tolerance, "higher_is_better": self.higher_is_better}


class Relative(Criterion):
    """At most this share of the baseline may be lost: ``Relative(0.01)`` is 1 %."""

    def allowed(self, baseline: float) -> float:
        return self.tolerance * abs(baseline)

    def __str__(self) -> str:
        return f"at most {self.tolerance:.2%} of the fp32 score lost"


class Absolute(Criterion):
    """At most this much may be lost, in the metric's own unit."""

    def allowed(self, baseline: float) -> float:
        return self.tolerance

    def __str__(self) -> str:
        return f"at most {self.tolerance:g} lost against the fp32 score"
