"""The histogram of an activation, with the range that was chosen for it."""

from __future__ import annotations

import math

from octune.report.html import formats
from octune.report.html.svg.draw import line, path, picture, rect, text
from octune.report.html.svg.scale import Linear
from octune.report.html.views.histograms import Histogram

__all__ = ["WIDTH", "histogram_picture"]

WIDTH, HEIGHT = 310, 128


def histogram_picture(view: Histogram) -> str:
    """Counts on a scale of powers of ten: what matters is rare values far out."""
    bottom, top = HEIGHT - 24.0, 8.0
    x = Linear(view.low, view.high, 2, WIDTH - 2)
    y = Linear(0.0, math.log10(1 + max(view.counts)) or 1.0, bottom, top)
    step = (view.high - view.low) / len(view.counts)
    outline = [(x(view.low), bottom)]
    for index, count in enumerate(view.counts):
        level = y(math.log10(1 + count))
        outline += [(x(view.low + step * index), level), (x(view.low + step * (index + 1)), level)]
    parts = []
    if view.chosen is not None:
        begin, end = x(view.chosen[0]), x(view.chosen[1])
        parts.append(rect(begin, top, end - begin, bottom - top, "inside"))
    parts.append(path([*outline, (x(view.high), bottom)], "area", closed=True))
    parts.append(line(2, bottom, WIDTH - 2, bottom, "base"))
    if view.chosen is not None:
        parts += [line(x(end), top - 4, x(end), bottom, "criterion") for end in view.chosen]
    parts.append(text(2, HEIGHT - 8, formats.plain(view.low), "tick"))
    parts.append(text(WIDTH - 2, HEIGHT - 8, formats.plain(view.high), "tick", "end"))
    if view.low < 0 < view.high and 40 < x(0.0) < WIDTH - 40:
        parts.append(text(x(0.0), HEIGHT - 8, "0", "tick", "middle"))
    return picture(WIDTH, HEIGHT, f"values of the input of {view.op.name}", *parts)
