"""Sections of docs/reliability.md that commands write, between markers; the rest of it is left alone."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from octune import __version__
from octune.machine import probe_machine

__all__ = ["write"]


def write(page: Path, name: str, lines: list[str]) -> None:
    """Put the lines between the markers of that name, with the machine and the day."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = page.read_text()
    head, _, rest = text.partition(begin)
    _, marker, tail = rest.partition(end)
    if not marker:
        raise ValueError(f"{page} has no {begin} ... {end}")
    machine = probe_machine()
    where = f"Octune {__version__}, {machine.cpu}, {machine.cores} cores, {date.today().isoformat()}."
    page.write_text("\n".join([f"{head}{begin}", "", *lines, "", where, "", f"{end}{tail}"]))
