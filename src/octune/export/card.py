"""The model card: what an int8 model scores, how sure that is, where it is safe, and how it was made."""

from __future__ import annotations

from collections import Counter
from typing import Any

from octune.criterion import Criterion
from octune.export.base import Saved
from octune.report.text import megabytes

__all__ = ["model_card"]


def model_card(saved: Saved) -> str:
    """The text of ``README.md``."""
    data = saved.manifest
    fp32, int8 = data["baseline"], data["best"]
    machine = data["environment"]["machine"]
    counts = Counter(scheme["dtype"] for scheme in data["plan"].values())
    dtype = next((name for name in ("int8", "bf16") if counts[name]), "fp32")
    rows = [
        ("", "fp32", f"{dtype} ({next(iter(saved.servable.formats))})"),
        ("score", _score(fp32), _score(int8)),
        (f"latency, median{_batch(data)}", _milliseconds(fp32), _milliseconds(int8)),
        ("weights", megabytes(fp32["size"]), megabytes(int8["size"])),
    ]
    met = "met" if data["met"] else "**NOT met**"
    lines = [
        "---",
        "tags:",
        *(["- int8"] if dtype == "int8" else []),
        "- octune",
        "---",
        "",
        f"# {saved.name}",
        "",
        f"A model in {dtype} for CPUs, made by Octune {data['octune']} from a trained fp32 model.",
        "",
        *(f"| {' | '.join(row)} |" for row in (rows[0], ("---",) * 3, *rows[1:])),
        "",
        f"- Criterion: {Criterion.from_json(data['criterion'])}: {met}.",
        *([f"- Verdict: {data['verdict']}."] if data.get("verdict") else []),
        *([f"- Speed-up, measured in turns with fp32: {_speedup(int8)}."] if int8["speedup"] else []),
        f"- Measured on: {machine['cpu']}, {saved.threads} threads.",
        f"- Safe on: {data['safe_on']}.",
        f"- Ops: {', '.join(f'{count} in {dtype}' for dtype, count in sorted(counts.items()))}.",
        f"- Plan: `{data['plan_digest']}`.",
        *_twin(saved),
        "",
        _files(saved),
        "",
    ]
    return "\n".join(lines)


def _score(trial: dict[str, Any]) -> str:
    score = trial["score"]
    if score is None:
        return "-"
    interval = "" if score.get("low") is None else f" [{score['low']:.4f}, {score['high']:.4f}]"
    return f"{score['value']:.4f}{interval}" + ("" if score.get("n") is None else f" n={score['n']}")


def _batch(data: dict[str, Any]) -> str:
    return f", batch of {data['batch']}" if data.get("batch") else ""


def _milliseconds(trial: dict[str, Any]) -> str:
    return "-" if trial["latency_ms"] is None else f"{trial['latency_ms']:.2f} ms"


def _speedup(trial: dict[str, Any]) -> str:
    interval = trial.get("speedup_interval")
    return f"{trial['speedup']:.2f}x" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def _twin(saved: Saved) -> list[str]:
    """What the model is the twin of: its own score is the one above."""
    other = saved.twin_of
    if other is None:
        return []
    wanted, found = (
        sum(scheme["dtype"] == "int8" for scheme in data["plan"].values()) for data in (other, saved.manifest)
    )
    return [
        f"- Twin of a {other['framework']} model with the plan `{other['plan_digest']}`, which scored "
        f"{_score(other['best'])} itself: {found} ops are int8 here, {wanted} there."
    ]


def _files(saved: Saved) -> str:
    scored, *others = saved.servable.formats
    text = f"The score is that of the {scored} file."
    return f"{text} The {' and '.join(others)} file holds the same plan." if others else text
