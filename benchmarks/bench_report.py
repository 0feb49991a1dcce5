"""A finished comparison as data, as a table for the terminal and as a section of a Markdown page.

    console.print(table(run.models[0]))
    write_markdown(Path("docs/benchmarks.md"), run)

No number of a page is typed by hand. Every family of benchmarks has a section of its own, between its
markers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pages
from bench_machine import BUSY_NEIGHBOURS
from rich.table import Table

__all__ = [
    "Family",
    "ModelRun",
    "Run",
    "machine_lines",
    "speed_reading",
    "table",
    "warnings",
    "write_markdown",
]


def speed_reading(baseline: str) -> str:
    """How to read a table of speeds, for the page."""
    return (
        f"Speed-up over {baseline} on the same inputs in the same run; the median of one call in brackets. "
        "All contenders take turns of a few calls. The error is |other - fp32| / |fp32| over the model's "
        "outputs, on batches that no contender was calibrated on. Where weights are random it shows that the "
        "kernels compute what they should, and says nothing about a task."
    )


@dataclass(frozen=True)
class Family:
    """A benchmark: its script (whose name is also in the page's markers), its heading, how to read it, and
    the packages that its numbers depend on.
    """

    name: str
    title: str
    reading: str
    packages: tuple[str, ...]


@dataclass
class ModelRun:
    """What was measured for one model, by contender; times are by shape first, ``scores`` by metric first."""

    name: str
    title: str
    baseline: str
    contenders: list[str]
    median_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    p90_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    neighbours: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    build_seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    caveats: dict[str, str] = field(default_factory=dict)
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
        rows += [[metric, *(self._score(metric, name) for name in self.contenders)] for metric in self.scores]
        if self.error:
            rows.append(
                [
                    "output error",
                    *(f"{self.error[name]:.4f}" if name in self.error else "-" for name in self.contenders),
                ]
            )
        built = self.build_seconds
        rows.append(
            ["made in", *(f"{built[name]:.0f} s" if built.get(name) else "-" for name in self.contenders)]
        )
        return rows

    def remarks_on(self, verbose: bool) -> list[str]:
        """What to say below the table: which contenders are missing, and why; which ones had an advantage."""
        lines = [f"{name}: {why}" for name, why in (*self.absent.items(), *self.caveats.items())]
        lines += [f"{name} failed: {why}" for name, why in self.failed.items()]
        return lines + [
            f"{name}: {remark}" for name, remarks in self.remarks.items() for remark in remarks if verbose
        ]

    def _nothing(self, name: str) -> str:
        return "failed" if name in self.failed else self.absent.get(name, "-").partition(":")[0]

    def _score(self, metric: str, name: str) -> str:
        value = self.scores[metric].get(name)
        if value is None:
            return self._nothing(name)
        reference = self.scores[metric].get(self.baseline)
        change = "" if reference is None or name == self.baseline else f" ({(value - reference) * 100:+.2f})"
        return f"{value * 100:.2f}{change}"

    def _time(self, shape: str, name: str) -> str:
        ratio = self.ratio(shape, name)
        ms = self.median_ms[shape].get(name)
        if ms is None:
            return self._nothing(name)
        return f"({ms:.1f} ms)" if ratio is None else f"{ratio:.2f}x ({ms:.1f} ms)"


@dataclass
class Run:
    """All models, and where they ran."""

    family: Family
    where: dict[str, Any]
    quick: bool
    models: list[ModelRun] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The inverse of :meth:`to_json`."""
        return cls(
            **{
                **data,
                "family": Family(**data["family"]),
                "models": [ModelRun(**model) for model in data["models"]],
            }
        )


def machine_lines(run: Run) -> list[str]:
    """Machine, versions and what other processes took, in three lines."""
    where = run.where
    meanwhile = max((cores for model in run.models for cores in model.neighbours.values()), default=0.0)
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return [
        f"{where['date']}; {where['cpu']}, {where['cores']} cores, {where['threads']} threads used; "
        f"{', '.join(where['features'])}",
        f"Python {where['python']}, {versions}",
        f"other processes kept {where['load']:.2f} cores busy before the start, and at most {meanwhile:.2f} "
        "while models were timed",
    ]


def warnings(run: Run) -> list[str]:
    """Why the numbers should not be trusted, if there is a reason. Only what other processes took counts: the
    benchmark's own work, and that of the table before it, does not.
    """
    found = []
    if run.quick:
        found.append(
            "a quick run: cut-down models and few rounds; it shows that everything works, not how fast it is"
        )
    if run.where["load"] > BUSY_NEIGHBOURS:
        found.append(
            f"the machine was busy before the start: other processes kept {run.where['load']:.1f} cores busy"
        )
    for model in run.models:
        for shape, cores in model.neighbours.items():
            if cores > BUSY_NEIGHBOURS:
                found.append(
                    f"{model.name} {shape}: other processes kept {cores:.1f} cores busy while it was timed"
                )
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
    """Put the results between the markers of a page; a page without markers gets them at its end, a new
    page gets a heading.

    Models that were not run this time keep their table, and so do other kinds of CPU: each table says when
    and where it was measured.
    """
    name, text = run.family.name, path.read_text() if path.exists() else "# Benchmarks\n"
    if pages.parts(text, name) is None:
        text = f"{text.rstrip()}\n\n<!-- {name}: begin -->\n<!-- {name}: end -->\n"
    _, old, _ = pages.parts(text, name) or ("", "", "")
    blocks = {title: body for title, _, body in (block.partition("\n") for block in old.split(HEADING)[1:])}
    blocks |= {f"{model.title}, on {run.where['generation']}": _block(run, model) for model in run.models}
    head = [
        f"## {run.family.title}",
        "",
        f"Written by `benchmarks/{run.family.name}.py --markdown`; do not edit by hand.",
        "",
    ]
    section = "\n".join([*head, run.family.reading])
    section += "".join(f"\n{HEADING}{title}\n{body.rstrip()}\n" for title, body in blocks.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pages.between(text, name, [section]))


HEADING = "\n### "


def _block(run: Run, model: ModelRun) -> str:
    run = replace(run, models=[model])  # what others took while another model was timed is not this one's
    lines = ["", f"| | {' | '.join(model.contenders)} |", f"|---|{'---:|' * len(model.contenders)}"]
    lines += [f"| {' | '.join(row)} |" for row in model.rows()]
    lines += [f"\n{line}" for line in model.remarks_on(verbose=False)]
    lines += [
        "",
        *(f"- {line}" for line in machine_lines(run)),
        *(f"- **warning**: {line}" for line in warnings(run)),
    ]
    return "\n".join(lines)
