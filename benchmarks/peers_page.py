"""The tables of docs/peers.md, from the jobs that were run.

write_page(Path("benchmarks/peer_rows"), Path("docs/peers.md"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pages

__all__ = ["write_page"]

ORDER = ("sst2", "mrpc", "stsb", "squad", "imagenet", "cnn", "transformer")
COLUMNS = (
    "tool", "1 % kept", "score", "change, with interval", "int8 share", "evaluations", "seconds", "peak MB",
    "over its own fp32", "over the fastest fp32", "lines of code", "if nothing passes",
)  # fmt: skip


def write_page(rows: Path, page: Path) -> None:
    """Put the tables between the markers of the page."""
    files = sorted(rows.glob("*.json"), key=lambda file: ORDER.index(file.stem))
    pages.write(page, "peers", [line for file in files for line in _section(json.loads(file.read_text()))])


def _section(job: Mapping[str, Any]) -> Iterator[str]:
    tools, ms, where = job["tools"], job["ms"], job["where"]
    fp32 = {name: ms[name] for name, tool in tools.items() if tool["fp32"] and name in ms}
    scores = [tool["score"] for name, tool in tools.items() if name == tool["baseline"] and "score" in tool]
    about = f"{scores[0]['n']:,} items, fp32 {_number(scores[0]['value'], job)}" if scores else "not scored"
    yield f"### {job['title']}"
    yield ""
    yield f"{job['metric']}, {about}."
    yield ""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|---" + "|---:" * (len(COLUMNS) - 2) + "|---|"
    for name, tool in tools.items():
        if not tool["fp32"]:
            yield "| " + " | ".join([tool["title"], *_cells(job, name, tool, fp32)]) + " |"
    yield ""
    yield from (f"- {tool['title']} failed: {tool['error']}" for tool in tools.values() if tool["error"])
    took = ", ".join(
        f"{tools[name]['title'].removeprefix('fp32, ')} {time:.2f} ms" for name, time in fp32.items()
    )
    versions = {
        name: version for tool in tools.values() for name, version in (tool["versions"] or {}).items()
    }
    yield f"- fp32, one call at batch 1: {took}"
    yield f"- {where['date']}; {where['cpu']}, {where['cores']} cores, {where['generation']}"
    yield f"- while all were timed, other processes kept {job['neighbours']:.2f} cores busy"
    shown = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    yield f"- Python {where['python']}; {shown}"
    yield ""


def _cells(
    job: Mapping[str, Any], name: str, tool: Mapping[str, Any], fp32: Mapping[str, float]
) -> Iterator[str]:
    score, verdict, ms = tool.get("score"), tool.get("verdict"), job["ms"].get(name)
    if verdict is None:
        yield "failed" if tool["error"] else "no model"
    else:
        yield "yes" if verdict["drop"] <= verdict["allowed"] else "**no**"
    yield "-" if score is None else _number(score["value"], job)
    yield "-" if verdict is None else _change(verdict, job)
    yield "-" if tool.get("coverage") is None else f"{tool['coverage']:.0%}"
    yield str(tool["evaluations"]) if tool["evaluations"] else "-"
    yield "-" if tool["seconds"] is None else f"{tool['seconds']:.0f}"
    yield "-" if tool["peak_mb"] is None else f"{tool['peak_mb']:,.0f}"
    for base in (fp32.get(tool["baseline"]), min(fp32.values(), default=None)):
        yield "-" if ms is None or base is None else f"{base / ms:.2f}x"
    yield str(tool["lines"])
    yield tool["otherwise"]


def _number(value: float, job: Mapping[str, Any]) -> str:
    return f"{value * _scale(job):.2f}"


def _scale(job: Mapping[str, Any]) -> int:
    """SQuAD's F1 is out of 100, the other metrics are out of 1."""
    return 1 if "squad" in job["metric"].lower() else 100


def _change(verdict: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    drop, low, high = (
        None if verdict[key] is None else -_scale(job) * verdict[key] for key in ("drop", "low", "high")
    )
    return f"{drop:+.2f}" if low is None or high is None else f"{drop:+.2f} [{high:+.2f}, {low:+.2f}]"
