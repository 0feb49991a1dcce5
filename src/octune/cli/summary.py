"""A result as the plain data that ``--json`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octune.result import Result, Trial

__all__ = ["summary"]


def summary(result: Result, saved: Path | None = None) -> dict[str, Any]:
    """A result as plain data, without the per-item scores."""

    def short(trial: Trial) -> dict[str, Any]:
        data = trial.summary()
        return data | {
            "plan_digest": data.pop("plan"),
            "verdict": str(trial.verdict) if trial.verdict else None,
        }

    return {
        "met": result.met,
        "stopped_because": result.stopped_because,
        "criterion": result.criterion.to_json(),
        "baseline": short(result.baseline),
        "best": short(result.best),
        "trials": [short(trial) for trial in result.trials],
        "plan": result.plan.to_json(),
        "kept": dict(result.kept),
        "notes": list(result.notes),
        "seconds": round(result.seconds, 2),
        "stages": {name: round(seconds, 2) for name, seconds in result.stages.items()},
        "environment": dict(result.environment),
        "saved_to": str(saved) if saved else None,
    }
