"""Elements of SVG, and the frame that plots with two axes share."""

from __future__ import annotations

import html
from collections.abc import Callable

from octune.report.html import formats
from octune.report.html.svg.scale import Scale

__all__ = ["axes", "line", "mark", "path", "picture", "rect", "shortened", "tag", "text", "text_width"]

Attribute = str | float | None
CHARACTER = 6.6  # pixels of a usual character at the size of labels


def tag(name: str, content: str = "", /, **attributes: Attribute) -> str:
    """An element; ``class_`` and ``data_tip`` become ``class`` and ``data-tip``, None is left out.
    ``content`` is SVG already.
    """
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return f"<{name}{''.join(parts)}>{content}</{name}>" if content else f"<{name}{''.join(parts)}/>"


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def text(
    x: float, y: float, said: str, class_: str = "label", anchor: str = "start", **rest: Attribute
) -> str:
    return tag("text", html.escape(said), x=x, y=y, class_=class_, text_anchor=anchor, **rest)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, **rest: Attribute) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, **rest)


def rect(x: float, y: float, width: float, height: float, class_: str, **rest: Attribute) -> str:
    return tag("rect", x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=class_, **rest)


def path(points: list[tuple[float, float]], class_: str, *, closed: bool = False) -> str:
    drawn = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points) + ("Z" if closed else "")
    return tag("path", d=drawn, class_=class_)


def mark(x: float, y: float, outcome: str, tip: str, size: float = 6.0) -> str:
    """A trial: shape and colour tell the outcome. An invisible, larger circle is easier to hit."""
    shapes: dict[str, Callable[[], str]] = {
        "fp32": lambda: rect(x - size + 1, y - size + 1, 2 * size - 2, 2 * size - 2, "mark fp32"),
        "pass": lambda: tag("circle", cx=x, cy=y, r=size, class_="mark pass"),
        "fail": lambda: tag(
            "path",
            d=f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}",
            class_="mark fail",
        ),
        "undecidable": lambda: tag("circle", cx=x, cy=y, r=size - 1, class_="mark undecidable"),
    }
    hit = tag("circle", cx=x, cy=y, r=size + 8, class_="hit")
    label = tip.replace("\n", ", ")
    return tag(
        "g", shapes[outcome]() + hit, class_="point", data_tip=tip, tabindex="0", role="img", aria_label=label
    )


def picture(width: float, height: float, label: str, *parts: str) -> str:
    """The whole image; ``label`` is what a screen reader says."""
    return tag(
        "svg",
        "".join(parts),
        viewBox=f"0 0 {width:g} {height:g}",
        role="group",
        aria_label=label,
        style=f"max-width:{width:g}px",
    )


def axes(
    x: Scale,
    y: Scale,
    x_title: str,
    y_title: str,
    *,
    x_ticks: bool = True,
    format_: Callable[[float], str] = formats.plain,
) -> str:
    """Grid lines, their numbers, and what the two axes are."""
    left, right, bottom, top = x.begin, x.end, y.begin, y.end
    parts = [text(left, top - 10, y_title, "axis")]
    for value in y.ticks(4):
        parts.append(line(left, y(value), right, y(value), "grid"))
        parts.append(text(left - 6, y(value) + 4, format_(value), "tick", "end"))
    for value in x.ticks(max(2, int((right - left) / 110))) if x_ticks else ():
        parts.append(line(x(value), bottom, x(value), bottom + 4, "grid"))
        parts.append(text(x(value), bottom + 18, format_(value), "tick", "middle"))
    parts.append(line(left, bottom, right, bottom, "base"))
    parts.append(text(right, bottom + 36, x_title, "axis", "end"))
    return "".join(parts)


def text_width(said: str) -> float:
    """About how wide a label is."""
    return CHARACTER * len(said)


def shortened(said: str, width: float) -> str:
    """A name cut in the middle to fit: its end tells more than its beginning."""
    most = max(4, int(width / CHARACTER))
    if len(said) <= most:
        return said
    head = max(1, most // 3)
    return f"{said[:head]}…{said[-(most - head - 1) :]}"
