"""A few answers that int8 changed, to look at."""

from __future__ import annotations

from dataclasses import dataclass

from octune.evaluation.examples import Example
from octune.report.html.facts import Facts

__all__ = ["Flip", "FlipsView", "flips_view"]


@dataclass(frozen=True, slots=True)
class Flip:
    """One item, and whether int8 lost or gained it."""

    example: Example
    lost: bool


@dataclass(frozen=True, slots=True)
class FlipsView:
    """``shown`` of ``total`` items that flipped; without labels, what fp32 answered counts as right."""

    shown: tuple[Flip, ...]
    total: int
    labelled: bool


def flips_view(facts: Facts) -> FlipsView | None:
    """None where nothing flipped, or the items cannot be shown."""
    recorded = facts.journal.last("flips")
    trial = facts.shown
    if recorded is None or trial is None or trial.key != recorded["trial"] or facts.result is None:
        return None
    before = facts.result.baseline.score
    if before is None or before.hits is None or trial.score is None or trial.score.hits is None:
        return None
    hits, verdict = before.hits, trial.verdict
    shown = tuple(
        Flip(example, bool(hits[example.item] > trial.score.hits[example.item]))
        for example in (Example(**data) for data in recorded["answer"])
    )
    total = len(shown) if verdict is None else (verdict.lost or 0) + (verdict.gained or 0)
    return FlipsView(shown, total, any(flip.example.label for flip in shown)) if shown else None
