"""Ops as a map: layers side by side, what an op does in its layer from top to bottom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from octune.report.html.views.ops import OpRow

__all__ = ["HeatView", "heat_view", "place"]

NUMBER = re.compile(r"(?:(?<=[./_])|^)(\d+)(?=[./]|$)")
DOMINANT = 0.6  # of the numbered ops: then their layers need no other name than their number
LEAST = 2  # layers and roles that make a map


@dataclass(frozen=True, slots=True)
class HeatView:
    """``cells`` by role and layer; ``outside`` is how many ops belong to no layer."""

    layers: tuple[str, ...]
    roles: tuple[str, ...]
    cells: dict[tuple[str, str], OpRow]
    outside: int


def place(name: str) -> tuple[str, int, str] | None:
    """Where an op is: what stands before the first number in its name, the number, and the rest.

    place("bert.encoder.layer.2.output.dense")      # ("bert.encoder.layer", 2, "output.dense")
    """
    found = NUMBER.search(name)
    if found is None:
        return None
    return name[: found.start()].strip("./_"), int(found[1]), name[found.end() :].strip("./")


def heat_view(ops: Sequence[OpRow]) -> HeatView | None:
    """None for a model whose names do not tell layers and roles."""
    places = {op.name: found for op in ops if (found := place(op.name)) is not None}
    if not places:
        return None
    before = Counter(prefix for prefix, _, _ in places.values())
    prefix, most = before.most_common(1)[0]
    alone = most >= DOMINANT * len(places)
    cells: dict[tuple[str, str], OpRow] = {}
    layers: dict[str, tuple[str, int]] = {}
    for op in ops:
        if op.name not in places:
            continue
        own, number, role = places[op.name]
        if alone and own != prefix:
            continue
        layer = str(number) if alone else f"{own}.{number}".strip(".")
        layers[layer] = (own, number)
        cells[role or "itself", layer] = op
    roles = list(dict.fromkeys(role for role, _ in cells))
    if len(layers) < LEAST or len(roles) < LEAST or 2 * len(cells) < len(layers) * len(roles):
        return None
    ordered = sorted(layers, key=lambda layer: layers[layer][1]) if alone else list(layers)
    return HeatView(tuple(ordered), tuple(roles), cells, len(ops) - len(cells))
