"""Score against latency, with the line of the criterion."""

from __future__ import annotations

from octune.report.html import formats
from octune.report.html.svg.draw import axes, line, mark, path, picture, tag, text, text_width
from octune.report.html.svg.scale import Linear
from octune.report.html.views.front import FrontView, Point

__all__ = ["front_picture"]

NUMBERED = 12  # with more trials than this, only the chosen one and fp32 have a label


def front_picture(view: FrontView, width: float) -> str:
    """Every trial, with its intervals; the front as steps; what is forbidden as a shaded area."""
    height = 380 if width > 500 else 320
    left, right, top, bottom = 62, width - 14, 34, height - 46
    scores = [v for p in view.points for v in (p.score, p.low, p.high) if v is not None] + [view.limit]
    times = [v for p in view.points for v in (p.latency, p.fast, p.slow) if v is not None]
    x = Linear.around([*times, 0.0] if view.timed else times, left, right)
    x = Linear(max(x.low, 0.0), x.high, left, right) if view.timed else x
    y = Linear.around(scores, bottom, top, 0.12)
    better = "higher" if view.higher_is_better else "lower"
    parts = [
        axes(x, y, "ms a batch: faster is further left" if view.timed else "trials, not timed",
             f"{view.metric}: {better} is better", x_ticks=view.timed),
        _criterion(view, y, left, right, top, bottom),
    ]  # fmt: skip
    steps = sorted((p for p in view.points if p.front), key=lambda p: p.latency)
    if view.timed and len(steps) > 1:
        parts.append(path([(x(p.latency), y(p.score)) for p in steps], "front"))
    for point in view.points:
        parts.append(_bars(point, x, y))
    # The most important is drawn last, so that nothing covers it, and labelled first.
    ranked = sorted(view.points, key=lambda p: (not p.chosen, p.outcome != "fp32"))
    for point in reversed(ranked):
        px, py = x(point.latency), y(point.score)
        if point.chosen:
            parts.append(tag("circle", cx=px, cy=py, r=12, class_="chosen"))
        parts.append(mark(px, py, point.outcome, point.tip))
    taken: list[tuple[float, float, float]] = []
    for point in ranked:
        if point.chosen or point.outcome == "fp32" or len(view.points) <= NUMBERED:
            parts.append(_label(point, view.best, x(point.latency), y(point.score), right, taken))
    return picture(width, height, f"{view.metric} against latency, {len(view.points)} trials", *parts)


def _criterion(view: FrontView, y: Linear, left: float, right: float, top: float, bottom: float) -> str:
    place = y(view.limit)
    begin, end = (place, bottom) if view.higher_is_better else (top, place)
    forbidden = tag(
        "rect", x=left, y=begin, width=right - left, height=max(0.0, end - begin), class_="forbidden"
    )
    side = place + 15 if view.higher_is_better else place - 6
    said = f"criterion: {'at least' if view.higher_is_better else 'at most'} {formats.score(view.limit)}"
    return (
        forbidden
        + line(left, place, right, place, "criterion")
        + text(right - 4, side, said, "label strong", "end")
    )


def _bars(point: Point, x: Linear, y: Linear) -> str:
    drawn = ""
    px, py = x(point.latency), y(point.score)
    if point.low is not None and point.high is not None:
        drawn += line(px, y(point.low), px, y(point.high), f"bar {point.outcome}")
    if point.fast is not None and point.slow is not None:
        drawn += line(x(point.fast), py, x(point.slow), py, f"bar {point.outcome}")
    return drawn


def _label(
    point: Point, best: str, px: float, py: float, right: float, taken: list[tuple[float, float, float]]
) -> str:
    """Beside its mark, above or below, where no other label is; the chosen one is always there."""
    name = "fp32" if point.outcome == "fp32" else point.label
    said = f"{name}: {best}" if point.chosen else name
    width = text_width(said) * (1.15 if point.chosen else 1.0)  # bold
    ahead = px + 16 + width <= right
    begin = px + 16 if ahead else px - 16 - width
    for y in (py - 9, py + 20):
        if all(begin + width < a or b < begin or abs(y - c) > 13 for a, b, c in taken):
            taken.append((begin, begin + width, y))
            anchor = "start" if ahead else "end"
            style = "label strong" if point.chosen else "label"
            return text(px + 16 if ahead else px - 16, y, said, style, anchor)
    return ""
