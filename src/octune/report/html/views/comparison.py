"""fp32 against int8, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from octune.int8 import ANYWHERE, Limit
from octune.report.html import formats
from octune.report.html.facts import Facts
from octune.report.text import megabytes
from octune.result import Result, Trial

__all__ = ["ComparisonView", "Line", "comparison_view"]


@dataclass(frozen=True, slots=True)
class Line:
    """One row: what it is, for fp32, for int8, and what int8 makes of it."""

    label: str
    fp32: str
    int8: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """``form`` is how the int8 model runs; ``timed_on`` is what its times belong to."""

    form: str
    lines: tuple[Line, ...]
    timed_on: str


def comparison_view(facts: Facts) -> ComparisonView | None:
    """The table; None until there is a quantized trial to compare."""
    result, trial = facts.result, facts.shown
    if result is None or trial is None:
        return None
    lines = [_score(result, trial), *_latencies(result, trial)]
    if trial.size is not None and result.baseline.size:
        saved = f"{trial.size / result.baseline.size:.0%}"
        lines.append(Line("weights", megabytes(result.baseline.size), megabytes(trial.size), saved))
    lines.append(_coverage(facts, trial))
    if (coverage := facts.coverage) is not None:
        lines.append(Line("multiply-adds", "100% fp32", str(coverage), coverage.beside))
    limit = facts.environment.get("weights")
    if limit in {known.value for known in Limit}:
        lines.append(Line("safe on", ANYWHERE, Limit(limit).safe_on))
    return ComparisonView(trial.form, tuple(lines), _timed_on(facts, result))


def _score(result: Result, trial: Trial) -> Line:
    verdict = trial.verdict
    change = "" if verdict is None else f"{formats.signed(-verdict.drop)} ({verdict.outcome})"
    before, after = result.baseline.score, trial.score
    return Line("score", str(before or formats.NONE), str(after or formats.NONE), change)


def _latencies(result: Result, trial: Trial) -> list[Line]:
    speed = "" if trial.speed is None else str(trial.speed)
    before, after = result.baseline.latency_ms, trial.latency_ms
    lines = [Line("latency, median", formats.ms(before), formats.ms(after), speed)]
    int8, fp32 = trial.spread_ms, trial.fp32_spread_ms
    if int8 is not None and fp32 is not None:
        lines.append(Line("latency, 90th percentile", formats.ms(fp32.p90), formats.ms(int8.p90)))
    if before and after:
        each = result.batch or 1
        unit = "items" if result.batch else "calls"
        lines.append(
            Line("throughput", f"{1e3 * each / before:,.0f} {unit}/s", f"{1e3 * each / after:,.0f} {unit}/s")
        )
    return lines


def _coverage(facts: Facts, trial: Trial) -> Line:
    sizes = {op.name: op.parameters for op in facts.ops}
    quantized = trial.plan.names("int8")
    text = f"{len(quantized)} of {len(trial.plan)} ops"
    if sum(sizes.values()):
        share = sum(sizes.get(name, 0) for name in quantized) / sum(sizes.values())
        text += f", {share:.0%} of their parameters"
    return Line("int8", "none", text)


def _timed_on(facts: Facts, result: Result) -> str:
    where = facts.environment
    machine = where.get("machine", {})
    parts = [machine.get("cpu", ""), f"{where['threads']} threads" if where.get("threads") else ""]
    parts.append(f"batches of {result.batch}" if result.batch else "")
    return ", ".join(part for part in parts if part)
