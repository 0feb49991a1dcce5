"""A trial as the numbers and words that trackers keep."""

from __future__ import annotations

from collections.abc import Mapping

from octune.plan import Scheme
from octune.result import Trial

__all__ = ["facts", "least_harm", "numbers"]


def numbers(trial: Trial) -> dict[str, float]:
    """What was measured, as far as it was."""
    found = {
        "score": None if trial.score is None else trial.score.value,
        "drop": None if trial.verdict is None else trial.verdict.drop,
        "passed": float(trial.passed),
        "speed-up": trial.speedup,
        "latency_ms": trial.latency_ms,
        "size_mb": None if trial.size is None else trial.size / 1e6,
        "int8_ops": float(len(trial.plan.names("int8"))),
        "seconds": trial.seconds,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def facts(trial: Trial) -> dict[str, str | float]:
    """What was tried."""
    counts = trial.plan.counts()
    return {
        "plan": trial.reason,
        "form": trial.form,
        "samples": float(trial.samples),
        "repaired ops": float(sum(bool(scheme.repairs) for scheme in trial.plan.values())),
        **{f"{dtype} ops": float(counts.get(dtype, 0)) for dtype in ("int8", "bf16", "fp32")},
    }


def least_harm(harms: Mapping[tuple[str, Scheme], float]) -> dict[str, float]:
    """The harm of every op in the int8 scheme that harms least."""
    least: dict[str, float] = {}
    for (op, scheme), harm in harms.items():
        if scheme.dtype == "int8":
            least[op] = min(harm, least.get(op, harm))
    return least
