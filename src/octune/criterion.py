"""How much accuracy may be lost, and what an evaluation says about it.

criterion = Relative(0.01)                       # at most 1 % of the baseline's score
criterion = Relative(0.01, confidence=0.95)      # and not by luck: with 95 % confidence
criterion = Absolute(0.5, higher_is_better=False)
criterion.judge(baseline_score, score)           # -> Verdict
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, plural
from octune.score import Score
from octune.statistics.intervals import Margins, margins
from octune.statistics.sequential import SLACK

__all__ = ["Absolute", "Criterion", "Relative", "Verdict"]

Outcome = Literal["pass", "fail", "undecidable"]
Floats = npt.NDArray[np.float64]
Numbers = TypeVar("Numbers", float, Floats)
DEFAULT_LEVEL = 0.95
# A relative loss of 1 or more would accept any model.
BELOW_ONE = "a share of the baseline's score below 1 (0.01 or '1%' lets the score drop by one percent)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one score says against the criterion.

    ``drop`` is the loss against the baseline (positive is worse), ``allowed`` the largest loss that passes;
    both in the metric's own unit. ``low`` and ``high`` bound the drop with 95 % confidence (or the
    criterion's own) when both scores have per-item results; ``lost`` and ``gained`` count the answers that
    flipped, of ``n``. ``needed`` is about how many items would decide, if the rest are like these; None when
    it is decided or unknown.

    Without a confidence the drop alone decides, and ``undecidable`` says whether luck could have. With one,
    ``bound`` is what the drop does not exceed with that confidence: the outcome is "pass" if that is allowed,
    "fail" if a forbidden drop is as certain, else "undecidable".
    """

    outcome: Outcome
    drop: float
    allowed: float
    low: float | None = None
    high: float | None = None
    lost: int | None = None
    gained: int | None = None
    n: int | None = None
    needed: int | None = None
    confidence: float | None = None
    bound: float | None = None
    stopped: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the criterion is met."""
        return self.outcome == "pass"

    @property
    def undecidable(self) -> bool:
        """Whether this many items cannot tell a pass from a fail."""
        if self.stopped is not None:
            return False
        if self.confidence is not None:
            return self.outcome == "undecidable"
        return self.low is not None and self.high is not None and self.low <= self.allowed < self.high

    @property
    def certainty(self) -> str:
        """How sure the outcome is, in words; empty where that is unknown, or nothing is in doubt."""
        if self.stopped is not None:
            return self.stopped
        words = []
        if self.bound is not None and self.confidence is not None:
            words.append(f"at most {self.bound:+.4f} with {self.confidence:.0%} confidence")
        if self.undecidable:
            text = (
                "undecidable with this many items"
                if self.low is not None
                else "undecidable without one score per item"
            )
            words.append(text + (f" (about {self.needed} would decide)" if self.needed is not None else ""))
        return ", ".join(words)

    def __str__(self) -> str:
        text = f"{self.outcome}: drop {self.drop:+.4f} of {self.allowed:.4f} allowed"
        if self.low is not None:
            text += f" [{self.low:+.4f}, {self.high:+.4f}]"
        if self.lost is not None:
            text += f", {plural(self.lost, 'answer')} lost and {self.gained} gained of {self.n}"
        return f"{text}, {self.certainty}" if self.certainty else text


@dataclass(frozen=True)
class Criterion(ABC):
    """Base of :class:`Relative` and :class:`Absolute`.

    Without a ``confidence`` the score decides as it is. With one, such as 0.95, a pass must be certain to
    that degree: a model that loses more than is allowed passes with a chance of at most 5 %. That needs one
    score per item.
    """

    tolerance: float
    higher_is_better: bool = True
    confidence: float | None = None

    def __post_init__(self) -> None:
        if (
            isinstance(self.tolerance, bool)
            or not isinstance(self.tolerance, int | float)
            or not math.isfinite(self.tolerance)
        ):
            raise ConfigError(
                f"The tolerance of a criterion must be a finite number. Got {self.tolerance!r} instead."
            )
        sure = self.confidence
        if sure is not None and (
            isinstance(sure, bool) or not isinstance(sure, int | float) or not 0.5 <= sure < 1
        ):
            raise ConfigError(
                f"The confidence of a criterion must be from 0.5 to below 1, such as 0.95. Got {sure!r} "
                "instead."
            )

    @abstractmethod
    def allowed(self, baseline: float) -> float:
        """The largest loss that passes; negative demands a gain."""

    def credit(self, baseline: Score) -> Floats | None:
        """What each item may lose, where that is an estimate too, because it depends on the baseline's items.
        None by default.
        """
        return None

    def limit(self, baseline: float) -> float:
        """The loss above which a candidate fails: what is allowed, and a hair more for rounding.

        0.9 - 0.891 is 0.009000000000000008, and a user who allows 1 % means that to pass. The hair grows with
        the numbers: a fixed amount would let anything pass where the scores are tiny, such as a mean squared
        error.
        """
        allowed = self.allowed(baseline)
        return allowed + SLACK * (abs(baseline) + abs(allowed))

    def loss(self, baseline: Numbers, value: Numbers) -> Numbers:
        """How much worse ``value`` is than ``baseline``; numbers, or one number per item."""
        return baseline - value if self.higher_is_better else value - baseline

    def judge(self, baseline: Score, score: Score) -> Verdict:
        """Compare a score with the baseline's, item by item when both have items."""
        allowed = self.allowed(baseline.value)
        paired = baseline if score.index is None or baseline.items is None else _part(baseline, score.index)
        if paired.items is None or score.items is None or paired.items.shape != score.items.shape:
            drop = self.loss(baseline.value, score.value)
            certain = self._outcome(baseline, drop, drop) if self.confidence is None else "undecidable"
            return Verdict(certain, drop, allowed, n=score.n, confidence=self.confidence)
        losses = self.loss(paired.items, score.items)
        # Part of the items can only be compared with the same part: it may be an easy or a hard one.
        drop = float(losses.mean()) if score.partial else self.loss(baseline.value, score.value)
        sides = self.margins(paired, score, (1 - (self.confidence or DEFAULT_LEVEL)) / 2)
        lost = gained = None
        if paired.hits is not None and score.hits is not None:
            lost, gained = int(np.sum(paired.hits > score.hits)), int(np.sum(paired.hits < score.hits))
        low, high, deciding, bound = drop - sides.down, drop + sides.up, sides, None
        outcome = self._outcome(baseline, drop, drop)
        undecided = low <= allowed < high
        if self.confidence is not None:
            deciding = self.margins(paired, score, 1 - self.confidence)
            bound = drop + deciding.up
            outcome = self._outcome(baseline, drop - deciding.down, bound)
            undecided = outcome == "undecidable"
        verdict = Verdict(
            outcome, drop, allowed, low, high, lost, gained, int(losses.size), None, self.confidence, bound
        )
        if score.partial:
            return replace(verdict, outcome="fail", stopped=_stopped(score))
        return replace(verdict, needed=_needed(losses.size, allowed - drop, deciding) if undecided else None)

    def _outcome(self, baseline: Score, least: float, most: float) -> Outcome:
        """What is known of a drop that is between ``least`` and ``most``."""
        limit = self.limit(baseline.value)
        return "pass" if most <= limit else "fail" if least > limit else "undecidable"

    def margins(self, baseline: Score, score: Score, tail: float) -> Margins:
        """How far off the drop may be, each way, with a chance of at most ``tail``; both scores must have the
        same items.
        """
        if baseline.items is None or score.items is None:
            raise ValueError("margins need the items of both scores")
        losses = self.loss(baseline.items, score.items)
        if losses.size < 2:
            return Margins(math.inf, math.inf, math.inf, math.inf)
        return margins(losses, tail, self.largest_changes(baseline, losses), self.credit(baseline))

    def largest_changes(self, baseline: Score, losses: Floats) -> tuple[float, float]:
        """The most that one item can lose, and gain: by the limits of the metric, else by how much items were
        seen to differ.
        """
        items = baseline.items
        if items is None:
            raise ValueError("the most that an item can lose needs the baseline's items")
        if baseline.span is not None:
            return baseline.span, baseline.span
        worst, best = float(items.min()), float(items.max())
        low, high = baseline.limits or ((0.0, 1.0) if 0 <= worst <= best <= 1 else (-math.inf, math.inf))
        most = best - low, high - worst
        if not self.higher_is_better:
            most = most[1], most[0]
        seen = float(np.abs(losses).max())
        # Without a limit, an item is taken to lose at most the distance between fp32's best and worst items.
        lost, gained = (one if math.isfinite(one) else best - worst for one in most)
        return max(lost, seen), max(gained, seen)

    def to_json(self) -> dict[str, Any]:
        """Plain data, in the words of the configuration."""
        sure = {} if self.confidence is None else {"confidence": self.confidence}
        return {
            type(self).__name__.lower(): self.tolerance,
            "higher_is_better": self.higher_is_better,
            **sure,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Criterion:
        """The inverse of :meth:`to_json`."""
        kind = next((kind for kind in (Relative, Absolute) if kind.__name__.lower() in data), None)
        if kind is None:
            raise ConfigError(f"A criterion is relative or absolute. Got {dict(data)!r:.200} instead.")
        return kind(data[kind.__name__.lower()], data["higher_is_better"], data.get("confidence"))

    def __str__(self) -> str:
        return self._described() + (
            "" if self.confidence is None else f", with {self.confidence:.0%} confidence"
        )

    @abstractmethod
    def _described(self) -> str: ...


class Relative(Criterion):
    """At most this share of the baseline may be lost: ``Relative(0.01)`` is 1 %."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerance >= 1:
            raise ConfigError(
                f"The tolerance of Relative must be {BELOW_ONE}. Got {self.tolerance!r} instead. Did you "
                f"mean Relative({self.tolerance / 100:g})?"
            )

    def allowed(self, baseline: float) -> float:
        return self.tolerance * abs(baseline)

    def credit(self, baseline: Score) -> Floats | None:
        return (
            None
            if baseline.items is None
            else self.tolerance * math.copysign(1.0, baseline.value) * baseline.items
        )

    def _described(self) -> str:
        return f"at most {self.tolerance:.2%} of the fp32 score lost"


class Absolute(Criterion):
    """At most this much may be lost, in the metric's own unit."""

    def allowed(self, baseline: float) -> float:
        return self.tolerance

    def _described(self) -> str:
        return f"at most {self.tolerance:g} lost against the fp32 score"


def _part(baseline: Score, index: npt.NDArray[np.int64]) -> Score:
    """The baseline's results on some of its items."""
    if baseline.items is None or index.size == 0 or index.max() >= baseline.items.size:
        return Score.of(baseline.value)
    hits = None if baseline.hits is None else baseline.hits[index]
    return Score(
        baseline.value,
        int(index.size),
        None,
        None,
        baseline.items[index],
        hits,
        baseline.limits,
        baseline.span,
    )


def _needed(n: int, distance: float, sides: Margins) -> int | None:
    """About how many items would decide: the part due to unseen losses shrinks with their number, the rest
    with its square root.
    """
    margin, unseen = (sides.up, sides.unseen_up) if distance >= 0 else (sides.down, sides.unseen_down)
    unseen, distance = min(unseen, margin), abs(distance)
    if distance == 0 or not math.isfinite(margin):
        return None
    rest = margin - unseen
    # unseen * x^2 + rest * x = distance, with x the square root of n over the number that is needed
    root = (
        (math.sqrt(rest**2 + 4 * unseen * distance) - rest) / (2 * unseen) if unseen > 0 else distance / rest
    )
    # At a drop that practically is the limit, no number of items decides.
    return max(n, math.ceil(n / root**2)) if root > 1e-6 else None


def _stopped(score: Score) -> str:
    seen = f"stopped after {score.n:,} of {score.total:,} items"
    if not score.p:
        return f"{seen}: fails whatever the others say"
    return f"{seen}: fails for certain (p < {math.ceil(score.p * 1e4) / 1e4:g})"
