"""Two bars for each kind of op: in fp32, and as it is now."""

from __future__ import annotations

from octune.report.html import formats
from octune.report.html.svg.draw import picture, rect, text
from octune.report.html.svg.scale import Linear
from octune.report.html.views.kinds import KindsView

__all__ = ["kinds_picture"]

ROW = 62


def kinds_picture(view: KindsView, width: float) -> str:
    """Bars with their numbers beside them, so that no axis is needed."""
    most = max(max(row.fp32_ms, row.chosen_ms) for row in view.rows)
    x = Linear(0.0, most or 1.0, 0.0, width - 150)
    parts = []
    for index, row in enumerate(view.rows):
        top = ROW * index
        share = row.saved_ms / row.fp32_ms if row.fp32_ms else 0.0
        saves = (
            f"saves {formats.ms(row.saved_ms)} ({share:.0%})"
            if row.saved_ms >= 0
            else f"costs {formats.ms(-row.saved_ms)} more"
        )
        parts.append(
            text(0, top + 14, f"{row.kind}, {formats.plural(row.ops, 'op')}: {saves}", "label strong")
        )
        for place, (name, ms) in enumerate((("fp32", row.fp32_ms), ("int8", row.chosen_ms))):
            y = top + 20 + 17 * place
            where = "in fp32" if name == "fp32" else "in the schemes of the plan"
            tip = f"{row.kind}: {formats.ms(ms)} {where}"
            parts.append(rect(0, y, max(1.0, x(ms)), 14, f"fill-{name}", rx=2.0, data_tip=tip))
            label = f"{formats.ms(ms)} {'fp32' if name == 'fp32' else 'now'}"
            parts.append(text(max(1.0, x(ms)) + 6, y + 11.5, label, "tick"))
    return picture(width, ROW * len(view.rows), "milliseconds by kind of op, fp32 and now", *parts)
