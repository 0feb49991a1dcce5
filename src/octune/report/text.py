"""A result's story in a few lines of plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octune.errors import plural

if TYPE_CHECKING:
    from octune.result import Result, Trial

__all__ = [
    "conditions",
    "float_gain",
    "headline",
    "in_evaluations",
    "megabytes",
    "milliseconds",
    "own_gain",
    "selection_bias",
    "spent",
    "story",
]


def megabytes(size: int | None) -> str:
    """A size in megabytes, or kilobytes where it is less than one."""
    if size is None:
        return "-"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def milliseconds(trial: Trial) -> str:
    """A latency: the median, and what nine of ten calls stay under."""
    if trial.latency_ms is None:
        return "-"
    p90 = "" if trial.spread_ms is None else f" (p90 {trial.spread_ms.p90:.2f})"
    return f"{trial.latency_ms:.2f} ms{p90}"


def conditions(result: Result) -> str:
    """What latencies belong to: the size of the batch and the number of threads, as far as they are known."""
    threads = result.threads
    known = [
        *([f"batch {result.batch}"] if result.batch is not None and not result.sizes else []),
        *([f"{plural(len(result.sizes), 'size')} of inputs, weighted"] if result.sizes else []),
        *([plural(threads, "thread")] if threads is not None else []),
    ]
    return ", ".join(known)


def selection_bias(result: Result) -> str:
    """What choosing the best of several plans on the same data does to its score; empty if there was only
    one.
    """
    if result.rivals < 2 or result.certified is not None or not result.met or result.best.form == "fp32":
        return ""
    return (
        f"best of {result.rivals} trials on the same data, so its score is partly luck: criterion.certify: "
        "holdout checks it on data "
        "that the search never saw"
    )


def in_evaluations(stages: Mapping[str, float]) -> tuple[float, float] | None:
    """All time except compiling, as a number of fp32 evaluations, which is the unit for the cost of tuning;
    and the seconds of compiling.
    """
    fp32, compiling = stages.get("baseline"), stages.get("finalists", 0.0)
    return ((sum(stages.values()) - compiling) / fp32, compiling) if fp32 else None


def spent(result: Result) -> str:
    """Where the time went."""
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.stages.items())
    counted = in_evaluations(result.stages)
    if counted is None:
        return parts
    evaluations, compiling = counted
    return f"{parts}; {evaluations:.1f} fp32 evaluations" + (
        f" and {compiling:.1f} s of compiling" if compiling else ""
    )


def own_gain(result: Result) -> str:
    """What int8 gains by itself, where fp32 was timed in the same form."""
    other, gain = result.fp32_in_form, result.int8_gain
    if other is None or gain is None:
        return ""
    return (
        f"{gain:.2f}x by int8 itself: fp32 in the same form ({result.best.form}) takes "
        f"{other.latency_ms:.2f} ms, {other.speed} as fast as fp32 as it came"
    )


def float_gain(result: Result) -> str:
    """What the fastest float model does, and what int8 gains over that."""
    if result.fastest_float is None:
        return ""
    name, speed = result.fastest_float
    said = f"the fastest that was timed is {name}" + ("" if name == "fp32" else f", {speed} as fast as fp32")
    return said + (f"; int8 is {result.over_float:.2f}x as fast" if result.best.dtype == "int8" else "")


def headline(result: Result) -> str:
    """What came of it, in one line."""
    best, score = result.best, result.baseline.score
    said = [
        "criterion met" if result.met else "criterion NOT met",
        best.title,
        f"score {score.value:.4f} -> {best.score.value:.4f}" if score and best.score else "",
        f"{best.speed}" if best.speed is not None and best.form != "fp32" else "",
        f"{plural(len(result.trials), 'trial')} in {result.seconds:.1f} s",
    ]
    return ", ".join(filter(None, said))


def story(result: Result) -> str:
    """What was done, what came of it, how sure that is."""
    best, baseline = result.best, result.baseline
    head = "criterion met" if result.met else "criterion NOT met"
    if best.dtype == "fp32" and best.form != "fp32":
        head += f", by {best.title}"
    elif best.form == "fp32":
        head += ", by the fp32 model itself" if result.met else ", the fp32 model is handed back"
    lines = [f"{head} ({result.criterion})"]
    if baseline.score is not None and best.score is not None and best.form != "fp32":
        lines.append(f"  score     fp32 {baseline.score} -> {best.score}")
        if best.verdict is not None:
            lines.append(f"  verdict   {best.verdict}")
        if result.certified is not None:
            lines.append(f"  certified {result.certified} (on data that the search never saw)")
        elif selection_bias(result):
            lines.append(f"  caution   {selection_bias(result)}")
    if best.speed is not None and best.latency_ms is not None:
        where = f" at {conditions(result)}" if conditions(result) else ""
        form = best.form if best.dtype == "int8" else best.title
        lines.append(f"  latency   {milliseconds(best)}{where}, {best.speed} as fast as fp32 ({form})")
    for label, (slow, fast) in zip(result.sizes, best.sizes_ms, strict=False):
        lines.append(f"            {label}: {fast:.2f} ms, {slow / fast:.2f}x as fast as fp32")
    if result.fp32_in_form is not None and result.int8_gain is not None:
        lines.append(f"  of which  {own_gain(result)}")
    if result.fastest_float is not None and best.form != "fp32":
        lines.append(f"  floats    {float_gain(result)}")
    lines.append(f"  size      {megabytes(baseline.size)} -> {megabytes(best.size)}")
    counts = ", ".join(
        f"{count} {dtype}" for dtype, count in sorted(result.plan.counts().items(), reverse=True)
    )
    lines.append(f"  plan      {counts} ({result.plan.digest[:8]})")
    if (coverage := result.coverage) is not None:
        lines.append(f"  coverage  of the multiply-adds: {coverage}")
        lines += [f"            {coverage.beside}"] if coverage.beside else []
    for name, why in list(result.kept.items())[:8]:
        lines.append(f"            {name} stays {result.plan[name].dtype}: {why}")
    if len(result.kept) > 8:
        lines.append(f"            ... and {len(result.kept) - 8} more")
    lines.append(
        f"  search    {plural(len(result.trials), 'trial')} in {result.seconds:.1f} s; stopped because "
        f"{result.stopped_because}"
    )
    if result.stages:
        lines.append(f"  time      {spent(result)}")
    lines.extend(f"  note      {note}" for note in result.notes)
    return "\n".join(lines)
