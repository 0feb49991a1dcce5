"""Maps of harm and of time: layers x roles."""

from __future__ import annotations

import math
from collections.abc import Callable

from octune.report.html import formats
from octune.report.html.svg.draw import picture, rect, shortened, tag, text, text_width
from octune.report.html.svg.scale import Linear, Log, Scale
from octune.report.html.views.heat import HeatView
from octune.report.html.views.ops import OpRow

__all__ = ["harm_picture", "time_picture"]

ROW = 24
FAINTEST = 0.08


def harm_picture(view: HeatView, width: float) -> str | None:
    """The harm of plain int8, on a scale of powers of ten; None where it was not measured."""
    values = [op.harm for op in view.cells.values() if op.harm]
    if not values:
        return None
    return _map(view, width, "harm", "heat-bad", lambda op: op.harm, Log.around(values, 0, 1), formats.harm)


def time_picture(view: HeatView, width: float) -> str | None:
    """The milliseconds that the schemes of the plan save; None where ops were not timed."""
    values = [op.saved_ms for op in view.cells.values() if op.saved_ms is not None]
    if not values:
        return None
    scale = Linear(0.0, max(*values, 1e-9), 0, 1)
    return _map(view, width, "ms saved", "heat-good", lambda op: op.saved_ms, scale, formats.ms)


def _map(
    view: HeatView,
    width: float,
    title: str,
    class_: str,
    value: Callable[[OpRow], float | None],
    scale: Scale,
    said: Callable[[float | None], str],
) -> str:
    left = min(0.42 * width, 14 + max(text_width(role) for role in view.roles))
    across = min(48.0, (width - left - 4) / len(view.layers))
    top = 26
    height = top + ROW * len(view.roles) + 48
    parts = [text(0, 14, "layer", "axis")]
    every = max(1, math.ceil((text_width(max(view.layers, key=len)) + 8) / across))
    for column, layer in enumerate(view.layers):
        if column % every == 0:
            parts.append(text(left + across * (column + 0.5), 14, layer, "tick", "middle"))
        for row, role in enumerate(view.roles):
            op = view.cells.get((role, layer))
            if op is None:
                continue
            x, y = left + across * column, top + ROW * row
            parts.append(_cell(op, x, y, across, class_, value(op), scale, f"{title} {said(value(op))}"))
    for row, role in enumerate(view.roles):
        parts.append(text(0, top + ROW * row + 16, shortened(role, left - 6), "label"))
    parts.append(
        _legend(left, top + ROW * len(view.roles) + 14, min(180.0, width - left), class_, scale, said)
    )
    return picture(width, height, f"{title} of {len(view.cells)} ops by layer and role", *parts)


def _cell(
    op: OpRow, x: float, y: float, across: float, class_: str, value: float | None, scale: Scale, said: str
) -> str:
    share = 0.0 if value is None else max(0.0, scale(value))
    tip = f"{op.name}\n{said}\n{formats.scheme(op.scheme)}" + (f"\n{op.why_float}" if op.why_float else "")
    gap = 1.0 if across > 12 else 0.25
    inner = rect(
        x + gap,
        y + 1,
        across - 2 * gap,
        ROW - 2,
        class_,
        rx=2.0,
        fill_opacity=FAINTEST + (1 - FAINTEST) * share,
        data_tip=tip,
    )
    if op.scheme is not None and op.scheme.is_float:
        inner += tag("circle", cx=x + across / 2, cy=y + ROW / 2, r=3, class_="float-dot")
    return inner


def _legend(
    x: float, y: float, width: float, class_: str, scale: Scale, said: Callable[[float | None], str]
) -> str:
    steps = 8
    bars = "".join(
        rect(
            x + width * i / steps,
            y,
            width / steps,
            10,
            class_,
            fill_opacity=FAINTEST + (1 - FAINTEST) * i / (steps - 1),
        )
        for i in range(steps)
    )
    return (
        bars
        + text(x, y + 26, said(scale.low), "tick")
        + text(x + width, y + 26, said(scale.high), "tick", "end")
    )
