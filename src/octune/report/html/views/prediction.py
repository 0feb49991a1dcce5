"""Can harm be trusted? What it predicted for each trial, against what was lost."""

from __future__ import annotations

from dataclasses import dataclass

from octune.report.html import formats
from octune.report.html.facts import Facts

__all__ = ["Predicted", "PredictionView", "prediction_view"]


@dataclass(frozen=True, slots=True)
class Predicted:
    """One trial: the harm of its plan, measured without labels before it was scored, and its loss."""

    label: str
    harm: float
    drop: float
    outcome: str
    chosen: bool
    tip: str


@dataclass(frozen=True, slots=True)
class PredictionView:
    """All trials that were scored; ``allowed`` is the largest loss that passes."""

    points: tuple[Predicted, ...]
    allowed: float
    metric: str


def prediction_view(facts: Facts) -> PredictionView | None:
    """None until a trial is scored whose harm is known."""
    if facts.result is None or facts.result.baseline.score is None:
        return None
    points = []
    for trial in facts.result.trials:
        harm, verdict = facts.plan_harm(trial.plan), trial.verdict
        if harm is None or verdict is None:
            continue
        label = facts.number(trial)
        tip = (
            f"trial {label}, {trial.form}\nharm {formats.harm(harm)}\nloss {formats.signed(verdict.drop)}, "
            f"{verdict.outcome}"
        )
        chosen = trial.key == facts.result.best.key
        points.append(Predicted(label, harm, verdict.drop, verdict.outcome, chosen, tip))
    allowed = facts.result.criterion.allowed(facts.result.baseline.score.value)
    return PredictionView(tuple(points), allowed, facts.metric) if points else None
