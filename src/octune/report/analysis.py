"""An analysis as tables: which ops int8 hurts, what would help them, and what ``auto`` would try first."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octune.analysis import Analysis, Row
from octune.plan import Scheme

__all__ = ["analysis_table"]

COLUMNS = ("int8", "dynamic", "repaired", "bf16")
OUTLOOK = {
    "comfortable": "a loss of 1 % is unlikely",
    "open": "evaluation will have to tell",
    "hopeless": "hopeless",
}


def analysis_table(analysis: Analysis, most: int | None = 30) -> RenderableType:
    """The most harmful ops (``most`` of them, or all), groups, and the first plan."""
    unit = "ms" if analysis.objective == "performance" else "kB"
    table = Table(
        title="harm of every op by itself, the least harmful scheme of each kind",
        title_justify="left",
        header_style="bold",
    )
    table.add_column("op")
    table.add_column("kind")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True, min_width=7)
    table.add_column(f"{unit} int8", justify="right")
    table.add_column(f"{unit} fp32", justify="right")
    table.add_column("auto begins with")
    rows = analysis.ranked
    for row in rows[:most]:
        style = "red" if row.harmful else ""
        table.add_row(
            row.op.name,
            row.op.kind,
            *(_least(row, column) for column in COLUMNS),
            *_costs(row, unit),
            str(row.start),
            style=style,
        )
    parts: list[RenderableType] = [table]
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
        Text(
            f"harm is squared change of the output over its variance, on {analysis.samples} calibration "
            "samples or fewer",
            style="dim",
        ),
    ]
    return Group(*parts)


def _least(row: Row, column: str) -> str:
    some = [harm for scheme, harm in row.harm.items() if _column(scheme) == column]
    return f"{min(some):.1e}" if some else "-"


def _column(scheme: Scheme) -> str:
    if scheme.is_float:
        return scheme.dtype
    return "repaired" if scheme.repairs else "dynamic" if scheme.mode == "dynamic" else "int8"


def _costs(row: Row, unit: str) -> tuple[str, str]:
    scale = 1.0 if unit == "ms" else 1e-3
    quantized = [
        scale * cost for scheme, cost in row.cost.items() if not scheme.is_float and not scheme.repairs
    ]
    floats = [scale * cost for scheme, cost in row.cost.items() if scheme.dtype == "fp32"]
    return tuple(f"{min(some):.3g}" if some else "-" for some in (quantized, floats))  # type: ignore[return-value]
