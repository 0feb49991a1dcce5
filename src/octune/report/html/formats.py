"""Numbers as the report prints them."""

from __future__ import annotations

import math

from octune.errors import plural
from octune.plan import Scheme

__all__ = [
    "count",
    "harm",
    "ms",
    "percent",
    "plain",
    "plural",
    "scheme",
    "score",
    "seconds",
    "signed",
    "times",
]

NONE = "–"


def score(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def signed(value: float | None) -> str:
    """A drop: with its sign, and a real minus."""
    if value is None:
        return NONE
    return "0.0000" if abs(value) < 5e-5 else f"{value:+.4f}".replace("-", "−")


def ms(value: float | None) -> str:
    """Milliseconds, with as many digits as are worth reading."""
    if value is None:
        return NONE
    if value == 0:
        return "0 ms"
    return f"{value:.1f} ms" if value >= 100 else f"{value:.2f} ms" if value >= 1 else f"{value:.3f} ms"


def harm(value: float | None) -> str:
    """Two digits: harm is known to a factor of two."""
    if value is None:
        return NONE
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+").replace("-", "−")


def percent(value: float | None) -> str:
    if value is None:
        return NONE
    if 0 < value < 1e-4:
        return "<0.01 %"
    return f"{value:.2%}".replace("%", " %") if value < 0.1 else f"{value:.0%}".replace("%", " %")


def plain(value: float) -> str:
    """A number on an axis or the end of a range."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}".replace("-", "−")
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")


def seconds(value: float) -> str:
    if value < 99.5:
        return f"{value:.1f} s"
    if value < 5970:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def scheme(chosen: Scheme | None) -> str:
    """A scheme without what goes without saying: weights by channel, and that a range is static."""
    return NONE if chosen is None else str(chosen).replace(" per_channel", "").replace(" static", "")


def count(value: int) -> str:
    return f"{value:,}"
