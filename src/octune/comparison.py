"""What ``octune check`` found out about two models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from octune.backends.opened import Covered, Opened
from octune.cost.latency import Spread, Timed
from octune.coverage import Coverage
from octune.criterion import Criterion, Verdict
from octune.score import Score

__all__ = ["Check", "Flip", "Side"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models, and what was found out about it.

    ``ops`` is how many of its ops with weights compute in int8, ``coverage`` which share of its
    multiply-adds; None where that cannot be told.
    """

    name: str
    kind: str
    size: int
    ops: Covered | None
    coverage: Coverage | None = None
    score: Score | None = None
    spread_ms: Spread | None = None

    @classmethod
    def of(cls, model: Opened, coverage: Coverage | None, score: Score | None, spread: Spread | None) -> Side:
        """A model, what it computes in, its score, and how it ran in turns with the other."""
        return cls(model.name, model.kind, model.size, model.ops, coverage, score, spread)

    @property
    def latency_ms(self) -> float | None:
        """The median."""
        return None if self.spread_ms is None else self.spread_ms.p50

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        score = None if self.score is None else self.score.to_json()
        return {
            "name": self.name,
            "kind": self.kind,
            "size": self.size,
            "int8_ops": None if self.ops is None else asdict(self.ops),
            "coverage": None if self.coverage is None else self.coverage.to_json(),
            "score": None if score is None else {key: score[key] for key in ("value", "n", "low", "high")},
            "latency_ms": self.latency_ms,
            "spread_ms": Spread.plain(self.spread_ms),
        }


@dataclass(frozen=True, slots=True)
class Flip:
    """An item on which the two models differ: its number, what is known of it (``row``, ``text``), what each
    model said, the numbers behind that, and the label.

    ``change`` is "lost" where fp32 alone was right, "gained" where int8 alone was. Without labels, what fp32
    said is right.
    """

    item: int
    change: str
    fp32: Any
    int8: Any
    label: Any = None
    fp32_output: Any = None
    int8_output: Any = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data, flat."""
        return {"item": self.item, **self.about} | {
            name: getattr(self, name)
            for name in ("change", "label", "fp32", "int8", "fp32_output", "int8_output")
        }


@dataclass(frozen=True)
class Check:
    """What :func:`octune.check` found. ``met`` is what the exit code of ``octune check`` says, as for
    ``tune``: whether the drop is allowed, or certain to be allowed where the criterion has a confidence.
    """

    fp32: Side
    int8: Side
    metric: str
    criterion: Criterion
    verdict: Verdict | None
    timed: Timed | None = None
    batch: int | None = None
    flips: Sequence[Flip] | None = None
    failure: str | None = None  # why the int8 model has no score
    notes: Sequence[str] = ()
    seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.verdict is not None and self.verdict.passed

    @property
    def outcome(self) -> str:
        """pass, fail, or undecidable with this many items."""
        if self.verdict is None:
            return "fail"
        return "undecidable" if self.verdict.undecidable else self.verdict.outcome

    def to_json(self) -> dict[str, Any]:
        """Plain data; flips are counted, not listed."""
        verdict = None if self.verdict is None else {k: _finite(v) for k, v in asdict(self.verdict).items()}
        return {
            "outcome": self.outcome,
            "met": self.met,
            "metric": self.metric,
            "criterion": self.criterion.to_json(),
            "verdict": verdict,
            "fp32": self.fp32.to_json(),
            "int8": self.int8.to_json(),
            "speedup": None if self.timed is None else asdict(self.timed.speed),
            "batch": self.batch,
            "flips": None if self.flips is None else len(self.flips),
            "failure": self.failure,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
            "environment": dict(self.environment),
        }

    def __str__(self) -> str:
        from octune.report.check import check_text

        return check_text(self)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
