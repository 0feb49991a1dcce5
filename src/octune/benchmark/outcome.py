"""What a comparison found: plain data, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from octune.cost.latency import Latency, Speedup
from octune.cost.load import BUSY

__all__ = ["Bench", "Row", "Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the models: where it came from, what it is, bytes of it, and how many ops are int8 if that is
    known.
    """

    name: str
    kind: str
    size: int
    coverage: str | None
    open_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One model at one size of input.

    ``throughput`` is samples per second of all instances together, ``memory_mb`` the most that one of them
    had above the import of its framework, from loading on. ``speed`` is against the first model, in turns
    with it; ``load`` is the share of the CPU that other processes had meanwhile.
    """

    model: str
    batch: int
    sequence: int | None
    latency: Latency | None = None
    throughput: float = 0.0
    memory_mb: float = 0.0
    speed: Speedup | None = None
    load: float = 0.0
    error: str | None = None

    @property
    def comparison(self) -> str:
        """The speed-up in words."""
        if self.speed is None:
            return ""
        interval = f"[{_times(self.speed.low)}, {_times(self.speed.high)}]"
        ratio = f"{_times(self.speed.ratio)}x" if self.speed.different else "no difference"
        return f"{ratio} {interval}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        latency, speed = self.latency, self.speed
        return {
            "model": self.model,
            "batch": self.batch,
            "sequence": self.sequence,
            "error": self.error,
            "latency_ms": latency
            and {
                "median": latency.median_ms,
                "p90": latency.p90_ms,
                "p99": latency.p99_ms,
                "calls": latency.runs,
            },
            "throughput": self.throughput,
            "memory_mb": self.memory_mb,
            "speedup": speed
            and {
                "ratio": speed.ratio,
                "low": speed.low,
                "high": speed.high,
                "different": speed.different,
            },
            "load": self.load,
        }


@dataclass(frozen=True)
class Bench:
    """Models side by side; ``cores`` are those of each instance."""

    models: Sequence[Subject]
    rows: Sequence[Row]
    cores: Sequence[Sequence[int]]
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def load(self) -> float:
        """The largest share of the CPU that other processes had while a model was timed."""
        return max((row.load for row in self.rows), default=0.0)

    @property
    def busy(self) -> str:
        """What to say if other processes disturbed it; empty if they did not."""
        if self.load <= BUSY:
            return ""
        return (
            f"the machine was busy: other processes took {self.load:.0%} of the CPU, so times are longer "
            "and intervals wider than on a quiet one"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "models": [asdict(model) for model in self.models],
            "rows": [row.to_json() for row in self.rows],
            "instances": len(self.cores),
            "cores": [list(cores) for cores in self.cores],
            "load": self.load,
            "busy": self.busy or None,
            "machine": dict(self.machine),
        }

    def __str__(self) -> str:
        from octune.report.bench import plain

        return plain(self)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
