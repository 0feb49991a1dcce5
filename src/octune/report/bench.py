"""Models side by side, as a table and as a picture."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from octune.benchmark.outcome import Bench, Row
from octune.errors import ConfigError, MissingDependency
from octune.folders import check_file
from octune.report.text import megabytes

__all__ = ["bench_table", "check_plot", "plain", "plot"]

PLOTS = (".png", ".svg")


def bench_table(outcome: Bench) -> RenderableType:
    """Every model at every size, and what the numbers are based on."""
    sequences = any(row.sequence is not None for row in outcome.rows)
    letters = _letters(outcome)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    for heading in ("batch", *(["tokens"] if sequences else [])):
        table.add_column(heading, justify="right")
    for heading in ("median", "p90", "p99", "per s", "MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    if len(letters) > 1:
        table.add_column("over A", min_width=len("no difference"))
    last: tuple[int, int | None] | None = None
    for row in outcome.rows:
        size = (row.batch, row.sequence)
        if last not in (None, size):
            table.add_row()
        last = size
        numbers = [str(row.batch), *([_blank(row.sequence)] if sequences else [])]
        against = [] if len(letters) == 1 else [row.comparison]
        table.add_row(letters[row.model], *numbers, *_measured(row), *against)
    each = {len(cores) for cores in outcome.cores}
    lines = [
        f"{letters[model.name]}  {model.name}: {model.kind}, {megabytes(model.size)}"
        + (f", {model.coverage} ops in int8" if model.coverage is not None else "")
        for model in outcome.models
    ]
    count = len(outcome.cores)
    lines.append(
        f"{count} instance{'s' if count > 1 else ''} on {'/'.join(map(str, sorted(each)))} "
        f"core{'s' if each != {1} else ''}{' each' if count > 1 else ''}: "
        f"{', '.join('+'.join(map(str, cores)) for cores in outcome.cores)}; {outcome.machine.get('cpu', '')}"
    )
    lines += [
        f"{letters[row.model]} could not be timed at {_size(row.batch, row.sequence)}: {row.error}"
        for row in outcome.rows
        if row.error
    ]
    meaning = "median, p90 and p99 in milliseconds; samples per second; peak memory" + (
        "; speed-up over A with its interval" if len(letters) > 1 else ""
    )
    parts: list[RenderableType] = [table, Text(meaning, style="dim"), Text(), *map(Text, lines)]
    if outcome.busy:
        parts.append(Text(outcome.busy, style="yellow"))
    return Group(*parts)


def _letters(outcome: Bench) -> dict[str, str]:
    """A short name for each model: A, B, ..., then numbers."""
    return {
        model.name: chr(ord("A") + number) if number < 26 else str(number + 1)
        for number, model in enumerate(outcome.models)
    }


def _blank(value: int | None) -> str:
    return "-" if value is None else str(value)


def _measured(row: Row) -> list[str]:
    if row.latency is None:
        return ["-"] * 5
    latency = row.latency
    return [
        *(f"{ms:.2f}" for ms in (latency.median_ms, latency.p90_ms, latency.p99_ms)),
        f"{row.throughput:.1f}",
        f"{row.memory_mb:.0f}",
    ]


def plain(outcome: Bench) -> str:
    """The table as text."""
    console = Console(file=StringIO(), width=140, highlight=False)
    console.print(bench_table(outcome))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().rstrip()


def check_plot(file: Path) -> None:
    """Whether a picture can be drawn there: asked before anything is timed."""
    if file.suffix.lower() not in PLOTS:
        raise ConfigError(f"--plot draws a .png or .svg file. Got {file} instead.")
    check_file(file, "--plot", ConfigError)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependency("matplotlib", "bench", "--plot") from error


def plot(outcome: Bench, file: Path) -> None:
    """Latency and throughput as bars: for latency the median, with marks at the 90th and 99th percentile."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys((row.batch, row.sequence) for row in outcome.rows))
    names = [model.name for model in outcome.models]
    found = {(row.model, row.batch, row.sequence): row for row in outcome.rows}
    height = 0.8 / len(names)
    figure = Figure(figsize=(10, 1.6 + 0.45 * len(sizes) * len(names)), layout="constrained")
    latency, throughput = figure.subplots(1, 2, sharey=True)
    for number, name in enumerate(names):
        for place, size in enumerate(sizes):
            row = found.get((name, *size))
            if row is None or row.latency is None:
                continue
            y, colour = place + (number - (len(names) - 1) / 2) * height, f"C{number}"
            label = Path(name).name if place == 0 else None
            _bar(latency, y, height, row.latency.median_ms, colour, label)
            latency.plot([row.latency.p90_ms, row.latency.p99_ms], [y, y], "|-", color="0.3", linewidth=1)
            _bar(throughput, y, height, row.throughput, colour, None)
    latency.set_yticks(range(len(sizes)), [_size(*size) for size in sizes])
    latency.invert_yaxis()
    latency.set_xlabel("latency in ms: median, p90 | and p99 |")
    throughput.set_xlabel("samples per second")
    for axes in (latency, throughput):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=min(3, len(names)), frameon=False)
    figure.savefig(file, dpi=150)


def _bar(axes: Any, y: float, height: float, value: float, colour: str, label: str | None) -> None:
    axes.barh(y, value, 0.9 * height, color=colour, label=label)
    axes.annotate(
        f" {value:,.0f}" if value >= 100 else f" {value:.3g}",
        (value, y - 0.25 * height),
        va="center",
        fontsize=8,
    )


def _size(batch: int, sequence: int | None) -> str:
    return f"batch {batch}" + (f", {sequence} tokens" if sequence is not None else "")
