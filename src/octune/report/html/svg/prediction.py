"""Harm predicted against loss measured."""

from __future__ import annotations

from octune.report.html import formats
from octune.report.html.svg.draw import axes, line, mark, picture, rect, text
from octune.report.html.svg.scale import Linear, Log
from octune.report.html.views.prediction import PredictionView

__all__ = ["prediction_picture"]


def prediction_picture(view: PredictionView, width: float) -> str:
    """If the probe is right, marks rise from left to right, and those below the line are on the left."""
    height = 300
    left, right, top, bottom = 62, width - 14, 34, height - 46
    x = Log.around((point.harm for point in view.points), left, right)
    y = Linear.around([*(point.drop for point in view.points), view.allowed, 0.0], bottom, top, 0.15)
    limit = y(view.allowed)
    parts = [
        axes(x, y, "harm predicted, without labels", f"loss of {view.metric} measured"),
        rect(left, top, right - left, limit - top, "forbidden"),
        line(left, limit, right, limit, "criterion"),
        text(
            right - 4, limit - 6, f"criterion: at most {formats.score(view.allowed)}", "label strong", "end"
        ),
    ]
    for point in view.points:
        parts.append(mark(x(point.harm), y(point.drop), point.outcome, point.tip))
        if len(view.points) <= 12:
            parts.append(text(x(point.harm) + 11, y(point.drop) - 8, point.label, "label"))
    return picture(width, height, f"harm against loss of {len(view.points)} trials", *parts)
