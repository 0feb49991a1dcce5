"""Every trial as a point: its score against its latency, and as a row of a table."""

from __future__ import annotations

from dataclasses import dataclass

from octune.cost.latency import Speedup
from octune.report.html import formats
from octune.report.html.facts import Facts
from octune.result import Result, Trial

__all__ = ["FrontView", "Point", "TrialRow", "front_view", "trial_rows"]


@dataclass(frozen=True, slots=True)
class Point:
    """One trial in the picture. ``score`` is compared with the line of the criterion, so its interval is that
    of the difference to fp32, item by item.
    """

    label: str
    outcome: str  # fp32, pass, fail, undecidable
    score: float
    latency: float
    low: float | None
    high: float | None
    fast: float | None
    slow: float | None
    chosen: bool
    front: bool
    tip: str


@dataclass(frozen=True, slots=True)
class FrontView:
    """``limit`` is the worst score that passes. Trials that are not ``timed`` stand side by side."""

    points: tuple[Point, ...]
    limit: float
    metric: str
    higher_is_better: bool
    timed: bool
    best: str  # what the best one is: handed over, or the best so far


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial in the table."""

    number: str
    reason: str
    form: str
    score: float | None
    items: str
    drop: float | None
    latency: float | None
    speed: str
    seconds: float
    outcome: str
    error: str
    chosen: bool


def front_view(facts: Facts) -> FrontView | None:
    """The picture; None until something is scored."""
    result = facts.result
    if result is None or result.baseline.score is None:
        return None
    trials = [trial for trial in (result.baseline, *result.trials) if trial.score is not None]
    timed = all(trial.latency_ms is not None for trial in trials)
    front = {trial.key for trial in result.front}
    base, criterion = result.baseline.score.value, result.criterion
    sign = -1.0 if criterion.higher_is_better else 1.0
    points = tuple(
        _point(
            facts, result, trial, base, sign, trial.latency_ms if timed else float(place), trial.key in front
        )
        for place, trial in enumerate(trials)
    )
    return FrontView(
        points,
        base + sign * criterion.allowed(base),
        facts.metric,
        criterion.higher_is_better,
        timed,
        "handed over" if facts.ended else "best so far",
    )


def _point(
    facts: Facts, result: Result, trial: Trial, base: float, sign: float, x: float | None, front: bool
) -> Point:
    verdict = trial.verdict
    fp32 = trial.form == "fp32"
    drop = 0.0 if fp32 or verdict is None else verdict.drop
    ends = (
        None
        if fp32 or verdict is None or verdict.low is None or verdict.high is None
        else sorted((base + sign * verdict.low, base + sign * verdict.high))
    )
    spread = trial.spread_ms
    return Point(
        label=facts.number(trial),
        outcome="fp32" if fp32 or verdict is None else verdict.outcome,
        score=base + sign * drop,
        latency=x or 0.0,
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        fast=spread.p10 if spread else None,
        slow=spread.p90 if spread else None,
        chosen=trial.key == result.best.key and (facts.ended or not fp32),
        front=front,
        tip=_tip(facts, trial),
    )


def _tip(facts: Facts, trial: Trial) -> str:
    name = "fp32" if trial.form == "fp32" else f"trial {facts.number(trial)}, {trial.form}"
    lines = [name, trial.reason, f"score {trial.score}"]
    if trial.form != "fp32" and trial.verdict is not None:
        lines.append(str(trial.verdict))
    if trial.latency_ms is not None:
        lines.append(
            f"{formats.ms(trial.latency_ms)}, {trial.speed}" if trial.speed else formats.ms(trial.latency_ms)
        )
    counts = trial.plan.counts()
    lines.append(", ".join(f"{number} {dtype}" for dtype, number in sorted(counts.items(), reverse=True)))
    return "\n".join(lines)


def _interval(speed: Speedup) -> str:
    return f"{formats.times(speed.ratio)} [{speed.low:.2f}, {speed.high:.2f}]"


def trial_rows(facts: Facts) -> tuple[TrialRow, ...]:
    """All trials, fp32 first; those that failed too."""
    result = facts.result
    return () if result is None else tuple(_row(facts, result, t) for t in (result.baseline, *result.trials))


def _row(facts: Facts, result: Result, trial: Trial) -> TrialRow:
    score, verdict = trial.score, None if trial.form == "fp32" else trial.verdict
    items = "" if score is None or score.n is None else formats.count(score.n)
    if score is not None and score.partial and score.total is not None:
        items += f" of {formats.count(score.total)}"
    outcome = "" if verdict is None else verdict.outcome + (", stopped early" if verdict.stopped else "")
    return TrialRow(
        facts.number(trial),
        trial.reason,
        trial.form,
        None if score is None else score.value,
        items,
        None if verdict is None else verdict.drop,
        trial.latency_ms,
        "" if trial.speed is None or trial.form == "fp32" else _interval(trial.speed),
        trial.seconds,
        "error" if trial.error else outcome,
        trial.error or "",
        trial.key == result.best.key and (facts.ended or trial.form != "fp32"),
    )
