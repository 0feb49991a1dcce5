"""The stages of a run on a line of time."""

from __future__ import annotations

from octune.report.html import formats
from octune.report.html.svg.draw import line, picture, rect, text, text_width
from octune.report.html.svg.scale import Linear
from octune.report.html.views.timeline import TimelineView

__all__ = ["timeline_picture"]

ROW = 24
UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def timeline_picture(view: TimelineView, width: float) -> str:
    """One row per stage, with its seconds behind its name; bars where it ran."""
    names = [f"{name}  {formats.seconds(total)}" for name, total in view.totals]
    left = 12 + max(map(text_width, names))
    rows = {name: index for index, (name, _) in enumerate(view.totals)}
    height = 8 + ROW * len(rows) + 30
    bottom = height - 26
    x = Linear(0.0, max(view.seconds, 1e-9), left, width - 16)
    unit, size = next((u for u in UNITS if view.seconds >= 2 * u[1]), UNITS[-1])
    parts = []
    for value in Linear(0.0, x.high / size, 0, 1).ticks(5 if width > 500 else 2):
        place = x(value * size)
        parts.append(line(place, 4, place, bottom, "grid"))
        parts.append(text(place, bottom + 18, f"{value:g} {unit}", "tick", "middle"))
    for index, name in enumerate(names):
        parts.append(text(0, 8 + ROW * index + 16, name, "label"))
    for span in view.spans:
        # Never thinner than one can see and hit.
        wide = max(2.0, x(span.end) - x(span.begin) - 1)
        parts.append(
            rect(
                x(span.begin),
                8 + ROW * rows[span.stage] + 4,
                wide,
                ROW - 8,
                "span",
                rx=2.0,
                data_tip=span.tip,
            )
        )
    return picture(width, height, f"stages of a run of {formats.seconds(view.seconds)}", *parts)
