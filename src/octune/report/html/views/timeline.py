"""Where the time of the run went, stage by stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from octune.engine.journal import JOURNAL
from octune.report.html import formats
from octune.report.html.facts import Facts

__all__ = ["Span", "TimelineView", "timeline_view"]


@dataclass(frozen=True, slots=True)
class Span:
    """A stage from ``begin`` to ``end``, in seconds since the run began. Time between two processes that
    worked on the run is left out.
    """

    stage: str
    detail: str
    begin: float
    end: float
    tip: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The stages in the order they began, and the seconds of each stage in all."""

    spans: tuple[Span, ...]
    totals: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        return max((span.end for span in self.spans), default=0.0)


def timeline_view(facts: Facts) -> TimelineView | None:
    """The stages as they were recorded; None where none were."""
    spans: list[Span] = []
    offset = 0.0
    for sitting in _sittings(facts):
        shift = offset - sitting.begun
        ends = [stage["at"] for stage in sitting.stages[1:]] + [sitting.ended]
        for stage, end in zip(sitting.stages, ends, strict=bool(sitting.stages)):
            begin, last = shift + stage["at"], shift + max(end, stage["at"])
            tip = f"{stage['name']}: {stage['detail']}\n{formats.seconds(last - begin)}"
            spans.append(Span(stage["name"], stage["detail"], begin, last, tip))
        offset += sitting.ended - sitting.begun
    if not spans:
        return None
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.stage] = totals.get(span.stage, 0.0) + span.end - span.begin
    return TimelineView(tuple(spans), tuple(totals.items()))


@dataclass(frozen=True, slots=True)
class _Sitting:
    """One process that worked on the run."""

    begun: float
    stages: list[dict[str, Any]]
    ended: float


def _sittings(facts: Facts) -> list[_Sitting]:
    found: list[_Sitting] = []
    for event, data in facts.journal.sequence("run", "stage", "failed", "result"):
        if event == "run":
            found.append(_Sitting(data["at"], [], data["at"]))
        elif found:
            last = found[-1]
            stages = [*last.stages, data] if event == "stage" else last.stages
            found[-1] = replace(last, stages=stages, ended=max(last.ended, data["at"]))
    if found and facts.state in ("running", "stopped"):
        found[-1] = replace(found[-1], ended=max(found[-1].ended, _last_sign(facts)))
    return found


def _last_sign(facts: Facts) -> float:
    """Now, if the run goes on; else when its journal was last written."""
    path = None if facts.journal.folder is None else facts.journal.folder / JOURNAL
    return time.time() if facts.state == "running" or path is None else path.stat().st_mtime
