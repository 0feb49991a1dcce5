"""A finished run as a table: what came in, what goes out, how sure that is, what stayed float and why."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octune.coverage import percent
from octune.criterion import DEFAULT_LEVEL, Verdict
from octune.errors import plural
from octune.report.progress import trial_table
from octune.report.text import conditions, megabytes, milliseconds, selection_bias, spent
from octune.result import Result

__all__ = ["result_table"]

RUNTIMES = ("torch", "tensorflow", "onnxruntime", "openvino")


def result_table(result: Result, saved_to: str | None = None) -> RenderableType:
    """The table that ``octune tune`` and ``octune demo`` end with."""
    baseline, best = result.baseline, result.best
    quantized = best.form != "fp32"
    style, head = ("bold green", "criterion met") if result.met else ("bold red", "criterion NOT met")
    title = Text.assemble((head, style), f" ({result.criterion})")
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column("fp32", justify="right")
    table.add_column(best.title if quantized else "handed back: fp32", justify="right")
    table.add_row("score", str(baseline.score), str(best.score))
    verdict = best.verdict
    if quantized and verdict is not None:
        _add_verdict(table, verdict, "drop")
        if result.certified is not None:
            _add_verdict(table, result.certified, "drop on held-out data")
        elif selection_bias(result):
            table.add_row("caution", "", f"best of {result.rivals} trials on the same data")
    table.add_row("latency, median", milliseconds(baseline), milliseconds(best))
    if conditions(result):
        table.add_row("  measured at", "", conditions(result))
    for label, (slow, fast) in zip(result.sizes, best.sizes_ms, strict=False):
        table.add_row(f"    {label}", f"{slow:.2f} ms", f"{fast:.2f} ms, {slow / fast:.2f}x")
    table.add_row("speed-up, measured in turns", "1.00x", "-" if best.speed is None else str(best.speed))
    if result.fp32_in_form is not None and result.int8_gain is not None:
        same = f"{result.fp32_in_form.latency_ms:.2f} ms"
        table.add_row(
            f"  fp32 in the same form ({best.form})", same, f"{result.int8_gain:.2f}x by int8 itself"
        )
    if result.fastest_float is not None and quantized:
        name, speed = result.fastest_float
        told = "" if best.dtype != "int8" else f"{result.over_float:.2f}x of that"
        table.add_row(f"  fastest float form: {name}", f"{speed.ratio:.2f}x", told)
    table.add_row("weights", megabytes(baseline.size), megabytes(best.size))
    counts = ", ".join(
        f"{count} {dtype}" for dtype, count in sorted(result.plan.counts().items(), reverse=True)
    )
    table.add_row("ops", f"{len(result.plan)} fp32", counts)
    coverage = result.coverage
    if coverage is not None:
        shares = [
            f"{percent(share)} {dtype}"
            for dtype, share in (("int8", coverage.int8), ("bf16", coverage.bf16), ("fp32", coverage.fp32))
            if share
        ]
        table.add_row("multiply-adds", "100% fp32", ", ".join(shares))
    parts: list[RenderableType] = [trial_table([baseline, *result.trials]), Text(), table]
    if result.kept:
        kept = Table(
            title="ops that were not quantized",
            title_justify="left",
            box=None,
            header_style="bold",
            pad_edge=False,
        )
        kept.add_column("op")
        kept.add_column("runs in")
        kept.add_column("why")
        for name, why in result.kept.items():
            kept.add_row(name, result.plan[name].dtype if name in result.plan else "fp32", why)
        parts += [Text(), kept]
    parts += [
        Text(),
        Text(
            f"{plural(len(result.trials), 'trial')} in {result.seconds:.1f} s; stopped because "
            f"{result.stopped_because}"
        ),
    ]
    if coverage is not None:
        beside = f"; {coverage.beside}" if coverage.beside else ""
        parts.append(Text(f"multiply-adds: {coverage}{beside}", style="dim"))
    parts += [Text(f"time: {spent(result)}", style="dim")] if result.stages else []
    parts += [Text(f"note: {note}", style="dim") for note in result.notes]
    where = result.environment
    cpu = where.get("machine", {}).get("cpu", "unknown CPU")
    versions = [f"{name} {where[name]}" for name in RUNTIMES if where.get(name)]
    parts.append(
        Text(", ".join([f"machine: {cpu}", plural(result.threads or 1, "thread"), *versions]), style="dim")
    )
    if saved_to is not None:
        parts.append(Text(f"saved to {saved_to}", style="bold"))
    return Group(*parts)


def _add_verdict(table: Table, verdict: Verdict, what: str) -> None:
    interval = "" if verdict.low is None else f" [{verdict.low:+.4f}, {verdict.high:+.4f}]"
    level = f", with {verdict.confidence or DEFAULT_LEVEL:.0%} interval" if interval else ""
    table.add_row(
        f"{what}{level}",
        "",
        f"{verdict.outcome}: {verdict.drop:+.4f} of {verdict.allowed:.4f} allowed{interval}",
    )
    if verdict.lost is not None:
        table.add_row(
            "  answers that flipped", "", f"{verdict.lost} lost, {verdict.gained} gained of {verdict.n}"
        )
    if verdict.certainty:
        table.add_row("  certainty", "", verdict.certainty)
