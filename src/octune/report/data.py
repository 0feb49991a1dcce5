"""A result as plain data: for ``--json``, for a program, for pandas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from octune.errors import MissingDependency
from octune.plan import Op

if TYPE_CHECKING:
    from octune.result import Result, Trial

__all__ = ["Tables", "as_data", "as_tables"]


class Tables(NamedTuple):
    """Two pandas data frames: one row for fp32 and each trial, and one row for each op."""

    trials: Any
    ops: Any


def as_data(result: Result, saved_to: str | Path | None = None) -> dict[str, Any]:
    """Everything but the model, the schemes that an op could have had, and the per-item scores."""
    return {
        "met": result.met,
        "stopped_because": result.stopped_because,
        "criterion": result.criterion.to_json(),
        "certified": None if result.certified is None else str(result.certified),
        "baseline": _short(result.baseline),
        "best": _short(result.best),
        "trials": [_short(trial) for trial in result.trials],
        "batch": result.batch,
        "sizes": list(result.sizes),
        "threads": result.threads,
        "fp32_in_form": None if result.fp32_in_form is None else result.fp32_in_form.to_json(),
        "int8_gain": result.int8_gain,
        "floats": {name: timed.to_json() for name, timed in result.floats.items()},
        "over_float": result.over_float,
        "coverage": None if result.coverage is None else result.coverage.to_json(),
        "plan": result.plan.to_json(),
        "kept": dict(result.kept),
        "notes": list(result.notes),
        "seconds": round(result.seconds, 2),
        "stages": {name: round(seconds, 2) for name, seconds in result.stages.items()},
        "environment": dict(result.environment),
        "saved_to": str(saved_to) if saved_to else None,
    }


def _short(trial: Trial) -> dict[str, Any]:
    data = trial.summary()
    return data | {
        "plan_digest": data.pop("plan"),
        "verdict": str(trial.verdict) if trial.verdict else None,
    }


def as_tables(result: Result) -> Tables:
    """The trials and the ops as data frames."""
    try:
        import pandas
    except ImportError as error:
        raise MissingDependency("pandas", None, "Result.to_pandas()") from error
    ops = result.ops or tuple(Op(name, "") for name in result.plan)
    return Tables(
        pandas.DataFrame([_trial_row(trial) for trial in (result.baseline, *result.trials)]),
        pandas.DataFrame([_op_row(op, result) for op in ops]),
    )


def _trial_row(trial: Trial) -> dict[str, Any]:
    score, verdict, speed = trial.score, trial.verdict, trial.speed
    spreads = {"": trial.spread_ms, "fp32_": trial.fp32_spread_ms}
    return {
        "form": trial.form,
        "plan": trial.reason,
        "score": None if score is None else score.value,
        "items": None if score is None else score.n,
        "drop": None if verdict is None else verdict.drop,
        "drop_low": None if verdict is None else verdict.low,
        "drop_high": None if verdict is None else verdict.high,
        "allowed": None if verdict is None else verdict.allowed,
        "outcome": None if verdict is None else verdict.outcome,
        "speedup": None if speed is None else speed.ratio,
        "speedup_low": None if speed is None else speed.low,
        "speedup_high": None if speed is None else speed.high,
        "latency_ms": trial.latency_ms,
        **{
            f"{whose}{name}_ms": None if spread is None else getattr(spread, name)
            for whose, spread in spreads.items()
            for name in ("p10", "p50", "p90")
        },
        "bytes": trial.size,
        "seconds": trial.seconds,
        "error": trial.error,
        "digest": trial.plan.digest,
        **{f"{dtype}_ops": trial.plan.counts().get(dtype, 0) for dtype in ("int8", "bf16", "fp32")},
    }


def _op_row(op: Op, result: Result) -> dict[str, Any]:
    scheme, work = result.plan.get(op.name), result.work
    return {
        "op": op.name,
        "kind": op.kind,
        "parameters": op.parameters,
        "multiply_adds": None if work is None else work.ops.get(op.name, 0),
        "dtype": "fp32" if scheme is None else scheme.dtype,
        "scheme": "fp32" if scheme is None else str(scheme),
        "why": result.kept.get(op.name),
    }
