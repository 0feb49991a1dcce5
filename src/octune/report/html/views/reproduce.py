"""What it takes to run it again, and to see that it was the same: command, versions, seed, checksums."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from octune.report.html.facts import Facts

__all__ = ["ReproduceView", "reproduce_view"]


@dataclass(frozen=True, slots=True)
class ReproduceView:
    """``command`` and ``config`` are shown as code; ``rows`` are names and values."""

    command: str
    config: str
    rows: tuple[tuple[str, str], ...]


def reproduce_view(facts: Facts) -> ReproduceView:
    """The last section."""
    start, run, where = facts.start, facts.run, facts.environment
    machine = where.get("machine", {})
    rows = [
        ("began", _moment(run.get("at"))),
        ("in", run.get("folder")),
        ("octune", run.get("octune")),
        *((name, value) for name, value in where.items() if name not in ("machine", "weights")),
        ("cpu", machine.get("cpu")),
        ("cpu features", ", ".join(machine.get("features", ()))),
        ("strategy", start.get("strategy")),
        ("seed", start.get("seed")),
        ("model, sha256 of its weights", start.get("model")),
        ("evaluation data, sha256 of its labels", _data(facts)),
        ("plan handed over, sha256", facts.result.plan.digest if facts.result and facts.ended else None),
    ]
    config = run.get("config") or {}
    return ReproduceView(
        run.get("command", ""),
        yaml.safe_dump(config, sort_keys=False) if config else "",
        tuple((name, str(value)) for name, value in rows if value not in (None, "")),
    )


def _moment(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _data(facts: Facts) -> str | None:
    recorded: Any = facts.journal.last("baseline")
    digests = None if recorded is None else recorded["answer"]["pairing"]["digests"]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest() if digests else None
