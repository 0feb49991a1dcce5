"""Sections of docs/reliability.md that commands write, between markers; the rest of it is left alone."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pages

from octune import __version__
from octune.machine import probe_machine

__all__ = ["write"]


def write(page: Path, name: str, lines: list[str]) -> None:
    """Put the lines between the markers of that name, with the machine and the day."""
    machine = probe_machine()
    where = f"Octune {__version__}, {machine.cpu}, {machine.cores} cores, {date.today().isoformat()}."
    pages.write(page, name, [*lines, "", where])
