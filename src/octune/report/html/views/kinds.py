"""Where int8 saves time: milliseconds by kind of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octune.report.html.views.ops import OpRow

__all__ = ["KindRow", "KindsView", "kinds_view"]


@dataclass(frozen=True, slots=True)
class KindRow:
    """All ops of one kind: what they take in fp32, and in the schemes that they have."""

    kind: str
    ops: int
    fp32_ms: float
    chosen_ms: float

    @property
    def saved_ms(self) -> float:
        return self.fp32_ms - self.chosen_ms


@dataclass(frozen=True, slots=True)
class KindsView:
    """The kinds, the one that saves most first."""

    rows: tuple[KindRow, ...]


def kinds_view(ops: Sequence[OpRow]) -> KindsView | None:
    """None where ops were not timed, or nothing was tried yet."""
    timed: dict[str, list[OpRow]] = {}
    for op in ops:
        if op.fp32_ms is not None and op.scheme is not None:
            timed.setdefault(op.kind, []).append(op)
    rows = [
        KindRow(
            kind,
            len(some),
            sum(op.fp32_ms or 0.0 for op in some),
            sum((op.fp32_ms or 0.0) - (op.saved_ms or 0.0) for op in some),
        )
        for kind, some in timed.items()
    ]
    return KindsView(tuple(sorted(rows, key=lambda row: -row.saved_ms))) if rows else None
