"""A finished speed comparison as data, as a table for the terminal and as a section of a Markdown page.

    console.print(table(run.models[0]))
    write_markdown(Path("docs/benchmarks.md"), run)

No number of a page is typed by hand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_machine import BUSY_LOAD, BUSY_NEIGHBOURS
from rich.table import Table

__all__ = ["ModelRun", "Run", "machine_lines", "table", "warnings", "write_markdown"]

BEGIN, END = "<!-- torch_speed: begin -->", "<!-- torch_speed: end -->"
READING = (
    "Speed-up over torch eager fp32 on the same inputs in the same run; the median of one call in brackets. All contenders take turns. "
    "The error is |int8 - fp32| / |fp32| over the model's outputs, on random weights: it shows that the kernels compute what they should, "
    "and says nothing about a task."
)


@dataclass
class ModelRun:
    """What was measured of one model; everything by contender, times by shape first."""

    name: str
    title: str
    baseline: str
    contenders: list[str]
    median_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    p90_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    neighbours: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    build_seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)

    def ratio(self, shape: str, contender: str) -> float | None:
        """Speed-up over the baseline, where both were timed."""
        times = self.median_ms[shape]
        if contender not in times or self.baseline not in times:
            return None
        return times[self.baseline] / times[contender]

    def rows(self) -> list[list[str]]:
        """The cells of the table, a heading in front of each row."""
        rows = [[shape, *(self._time(shape, name) for name in self.contenders)] for shape in self.median_ms]
        rows.append(["output error", *(f"{self.error[name]:.4f}" if name in self.error else "-" for name in self.contenders)])
        built = self.build_seconds
        rows.append(["made in", *(f"{built[name]:.0f} s" if built.get(name) else "-" for name in self.contenders)])
        return rows

    def _time(self, shape: str, name: str) -> str:
        ratio = self.ratio(shape, name)
        if name in self.failed:
            return "failed"
        ms = self.median_ms[shape].get(name)
        if ms is None:
            return "-"
        return f"({ms:.1f} ms)" if ratio is None else f"{ratio:.2f}x ({ms:.1f} ms)"


@dataclass
class Run:
    """All models, and where they ran."""

    where: dict[str, Any]
    quick: bool
    models: list[ModelRun] = field(default_factory=list)
    load_at_end: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The inverse of :meth:`to_json`."""
        return cls(**{**data, "models": [ModelRun(**model) for model in data["models"]]})


def machine_lines(run: Run) -> list[str]:
    """Machine, versions and load in three lines."""
    where = run.where
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return [
        f"{where['date']}; {where['cpu']}, {where['cores']} cores, {where['threads']} threads used; {', '.join(where['features'])}",
        f"Python {where['python']}, {versions}",
        f"load average {where['load']:.2f} before, {run.load_at_end:.2f} after (the benchmark itself included)",
    ]


def warnings(run: Run) -> list[str]:
    """Why the numbers should not be believed, if they should not."""
    found = []
    if run.quick:
        found.append("a quick run: cut-down models and few rounds; it shows that everything works, not how fast it is")
    if run.where["load"] > BUSY_LOAD:
        found.append(f"the machine was busy before the start: load average {run.where['load']:.2f}, should be below {BUSY_LOAD}")
    for model in run.models:
        for shape, cores in model.neighbours.items():
            if cores > BUSY_NEIGHBOURS:
                found.append(f"{model.name} {shape}: other processes kept {cores:.1f} cores busy while it was timed")
    return found


def table(model: ModelRun) -> Table:
    """One model for the terminal."""
    made = Table(title=model.title, title_justify="left", header_style="bold")
    made.add_column("")
    for name in model.contenders:
        made.add_column(name, justify="right")
    for row in model.rows():
        made.add_row(*row)
    return made


def write_markdown(path: Path, run: Run) -> None:
    """Put the results between the markers of a page; a page that has no markers gets them at its end, a new one a heading."""
    section = "\n".join([BEGIN, *_markdown(run), END])
    text = path.read_text() if path.exists() else "# Benchmarks\n"
    if BEGIN in text and END in text:
        before, _, rest = text.partition(BEGIN)
        text = before + section + rest.partition(END)[2]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _markdown(run: Run) -> list[str]:
    lines = ["## PyTorch: speed", "", "Written by `benchmarks/torch_speed.py --markdown`; do not edit by hand.", ""]
    lines += [f"- {line}" for line in machine_lines(run)]
    lines += [f"- **warning**: {line}" for line in warnings(run)]
    lines += ["", READING]
    for model in run.models:
        lines += ["", f"### {model.title}", "", f"| | {' | '.join(model.contenders)} |", f"|---|{'---:|' * len(model.contenders)}"]
        lines += [f"| {' | '.join(row)} |" for row in model.rows()]
        lines += [f"\n{name} failed: {why}" for name, why in model.failed.items()]
    return lines
