"""What ``octune check`` found, for people and for machines: a table, lines of text, JUnit XML, flips."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octune.criterion import DEFAULT_LEVEL
from octune.report.text import megabytes

if TYPE_CHECKING:
    from octune.comparison import Check, Side

__all__ = ["check_table", "check_text", "flips_text", "junit", "junit_error", "verdict_line"]

STYLES = {"pass": "bold green", "fail": "bold red", "undecidable": "bold yellow"}


def verdict_line(check: Check) -> str:
    """The verdict in one sentence."""
    verdict = check.verdict
    if verdict is None:
        return f"fail: the int8 model could not be scored. {check.failure}"
    drop = (
        f"the drop of {verdict.drop:+.4f} is {'within' if verdict.drop <= verdict.allowed else 'beyond'} the "
    )
    drop += f"{verdict.allowed:.4f} that is allowed"
    if check.outcome != "undecidable":
        sure = "" if verdict.low is None else ", and not by chance"
        return f"{check.outcome}: {drop}{sure} ({check.criterion})"
    items = "without one score per item" if verdict.low is None else f"with {verdict.n:,} items"
    needed = "" if verdict.needed is None else f": about {verdict.needed:,} items would decide"
    return f"undecidable {items}{needed}; {drop} ({check.criterion})"


def rows(check: Check) -> list[tuple[str, str, str]]:
    """What is known, as (name, fp32, int8)."""
    verdict, timed = check.verdict, check.timed
    found = [(check.metric, str(check.fp32.score), str(check.int8.score) if check.int8.score else "-")]
    if verdict is not None:
        interval = "" if verdict.low is None else f" [{verdict.low:+.4f}, {verdict.high:+.4f}]"
        level = f", with {verdict.confidence or DEFAULT_LEVEL:.0%} interval" if interval else ""
        found.append((f"drop{level}", "", f"{verdict.drop:+.4f} of {verdict.allowed:.4f} allowed{interval}"))
        if verdict.lost is not None:
            found.append(
                ("answers that flipped", "", f"{verdict.lost} lost, {verdict.gained} gained of {verdict.n}")
            )
    if timed is not None:
        found.append((f"latency, median, batch {check.batch}", _latency(check.fp32), _latency(check.int8)))
        found.append(("speed-up, measured in turns", "1.00x", str(timed.speed)))
    found.append(("multiply-adds", _covered(check.fp32), _covered(check.int8)))
    found.append(("int8 ops, of those with weights", _ops(check.fp32), _ops(check.int8)))
    found.append(("size", megabytes(check.fp32.size), megabytes(check.int8.size)))
    return found


def check_table(check: Check) -> RenderableType:
    """The verdict, and what it rests on."""
    table = Table("", header_style="bold")
    for side in ("fp32", "int8"):
        table.add_column(side, justify="right")
    for row in rows(check):
        table.add_row(*row)
    names = [
        Text(f"{side}: {one.name} ({one.kind})") for side, one in (("fp32", check.fp32), ("int8", check.int8))
    ]
    notes = [Text(f"note: {note}", style="dim") for note in check.notes]
    return Group(Text(verdict_line(check), style=STYLES[check.outcome]), *names, table, *notes)


def check_text(check: Check) -> str:
    """The same in plain lines."""
    lines = [verdict_line(check), f"  fp32  {check.fp32.name} ({check.fp32.kind})"]
    lines.append(f"  int8  {check.int8.name} ({check.int8.kind})")
    lines += [f"  {name}: {fp32 + ' -> ' if fp32 else ''}{int8}" for name, fp32, int8 in rows(check)]
    return "\n".join([*lines, *(f"  note: {note}" for note in check.notes)])


def junit(check: Check) -> bytes:
    """JUnit XML with one test case, as CI systems read it: it fails where ``octune check`` exits with 1."""
    name = f"{check.int8.name} against {check.fp32.name}: {check.metric}"
    suites, case = _junit_case(name, check.seconds, failures=int(not check.met))
    known = {"outcome": check.outcome, "criterion": str(check.criterion), "metric": check.metric}
    for what, fp32, int8 in rows(check):
        known |= {f"{what} ({side})": text for side, text in (("fp32", fp32), ("int8", int8)) if text}
    listed = ElementTree.Element("properties")
    for what, text in known.items():
        ElementTree.SubElement(listed, "property", {"name": what, "value": _printable(text)})
    suites[0].insert(0, listed)
    if not check.met:
        told = {"message": _printable(verdict_line(check)), "type": check.outcome}
        ElementTree.SubElement(case, "failure", told).text = _printable(check_text(check))
    ElementTree.SubElement(case, "system-out").text = _printable(check_text(check))
    return _written(suites)


def junit_error(name: str, message: str) -> bytes:
    """The same where there is no verdict: a test case that could not be run."""
    suites, case = _junit_case(name, 0.0, errors=1)
    ElementTree.SubElement(case, "error", {"message": _printable(message), "type": "error"})
    return _written(suites)


def _junit_case(
    name: str, seconds: float, *, failures: int = 0, errors: int = 0
) -> tuple[ElementTree.Element, ElementTree.Element]:
    time = f"{seconds:.3f}"
    counts = {"tests": "1", "failures": str(failures), "errors": str(errors), "skipped": "0", "time": time}
    suites = ElementTree.Element("testsuites", {"name": "octune check", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "octune check", **counts})
    named = {"classname": "octune.check", "name": _printable(name), "time": time}
    return suites, ElementTree.SubElement(suite, "testcase", named)


def _written(suites: ElementTree.Element) -> bytes:
    ElementTree.indent(suites)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text


def flips_text(check: Check, path: Path) -> str:
    """The flips as CSV, or as JSON lines where the file is to be called ``.jsonl``."""
    listed = [flip.to_json() for flip in check.flips or ()]
    if path.suffix == ".jsonl":
        return "".join(json.dumps(flip, ensure_ascii=False) + "\n" for flip in listed)
    columns = list(dict.fromkeys(["item", *(name for flip in listed for name in flip)]))
    columns = columns if listed else ["item", "change", "label", "fp32", "int8", "fp32_output", "int8_output"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def _latency(side: Side) -> str:
    if side.latency_ms is None:
        return "-"
    return f"{side.latency_ms:.2f} ms" + (
        "" if side.spread_ms is None else f" (p90 {side.spread_ms.p90:.2f})"
    )


def _covered(side: Side) -> str:
    if side.coverage is None:
        return "unknown"
    left = ", ".join(f"{name} {count}" for name, count in side.coverage.uncounted.items())
    return f"{side.coverage}; not counted: {left}" if left else str(side.coverage)


def _ops(side: Side) -> str:
    return "unknown" if side.ops is None else str(side.ops)


def _printable(text: str) -> str:
    """XML has no control characters; a name of a file or an error of a runtime may."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)
