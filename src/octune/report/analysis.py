"""An analysis as tables: which ops int8 hurts, what would help them, and what ``auto`` would try first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octune.analysis import Analysis, Row
from octune.plan import Scheme

__all__ = ["analysis_table"]

TITLE = "harm of every op by itself, the least harmful scheme of each kind"
WIDE = 110  # columns of a terminal that the table fits into, if names are not long
COLUMNS = ("int8", "dynamic", "repaired", "bf16")
OUTLOOK = {
    "comfortable": "a loss of 1 % is unlikely",
    "open": "evaluation will have to tell",
    "hopeless": "hopeless",
}


def analysis_table(analysis: Analysis, most: int | None = 30, width: int = WIDE) -> RenderableType:
    """The most harmful ops (``most`` of them, or all), groups, and the first plan. A table, or, where that
    would not fit into ``width``, two lines for each op.
    """
    unit = "ms" if analysis.objective == "performance" else "kB"
    rows = analysis.ranked
    parts: list[RenderableType] = [_wide(rows[:most], unit) if width >= WIDE else _narrow(rows[:most], unit)]
    if most is not None and len(rows) > most:
        parts.append(Text(f"and {len(rows) - most} ops with less harm", style="dim"))
    for group in analysis.groups:
        parts.append(
            Text(f"harmful together: {', '.join(group.ops)}: {group.harm:.2g}, one by one {group.alone:.2g}")
        )
    counts = ", ".join(
        f"{count} {dtype}" for dtype, count in sorted(analysis.start.counts().items(), reverse=True)
    )
    repaired = sum(bool(scheme.repairs) for scheme in analysis.start.values())
    parts += [
        Text(),
        Text(f"every op in its fastest scheme: harm {analysis.fastest_harm:.2g}, measured as a whole"),
        Text(
            f"auto begins with: {counts}, {repaired} repaired; harm {analysis.start_harm:.2g} "
            f"({OUTLOOK[analysis.outlook]})",
            style="bold",
        ),
        *_coverage(analysis),
        Text(
            f"harm is squared change of the output over its variance, on {analysis.samples} calibration "
            "samples or fewer",
            style="dim",
        ),
    ]
    return Group(*parts)


def _coverage(analysis: Analysis) -> list[Text]:
    coverage = analysis.coverage
    if coverage is None:
        return []
    beside = [Text(coverage.beside, style="dim")] if coverage.beside else []
    return [Text(f"of its multiply-adds: {coverage}"), *beside]


def _wide(rows: Sequence[Row], unit: str) -> Table:
    table = Table(title=TITLE, title_justify="left", header_style="bold")
    table.add_column("op", overflow="fold")
    table.add_column("kind")
    for column in (*COLUMNS, f"{unit} int8", f"{unit} fp32"):
        table.add_column(column, justify="right", no_wrap=True, min_width=7)
    table.add_column("auto begins with")
    for row in rows:
        table.add_row(
            row.op.name, row.op.kind, *_numbers(row, unit), str(row.start), style="red" if row.harmful else ""
        )
    return table


def _narrow(rows: Sequence[Row], unit: str) -> Text:
    text = Text(f"{TITLE}; above its numbers, what auto begins with:\n")
    text.append("".join(f"{column:>10}" for column in (*COLUMNS, f"{unit} int8", f"{unit} fp32")), "bold")
    for row in rows:
        text.append(f"\n{row.op.name} ({row.op.kind}): {row.start}", "red" if row.harmful else "")
        text.append("\n" + "".join(f"{number:>10}" for number in _numbers(row, unit)), "dim")
    return text


def _numbers(row: Row, unit: str) -> tuple[str, ...]:
    return (*(_least(row, column) for column in COLUMNS), *_costs(row, unit))


def _least(row: Row, column: str) -> str:
    some = [harm for scheme, harm in row.harm.items() if _column(scheme) == column]
    return f"{min(some):.1e}" if some else "-"


def _column(scheme: Scheme) -> str:
    if scheme.is_float:
        return scheme.dtype
    return "repaired" if scheme.repairs else "dynamic" if scheme.is_dynamic else "int8"


def _costs(row: Row, unit: str) -> tuple[str, str]:
    scale = 1.0 if unit == "ms" else 1e-3
    quantized = [
        scale * cost for scheme, cost in row.cost.items() if not scheme.is_float and not scheme.repairs
    ]
    floats = [scale * cost for scheme, cost in row.cost.items() if scheme.dtype == "fp32"]
    return tuple(f"{min(some):.3g}" if some else "-" for some in (quantized, floats))  # type: ignore[return-value]
