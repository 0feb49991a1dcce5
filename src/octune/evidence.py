"""Everything that a run has recorded, for whoever wants to look at it: a report, a live view.

evidence = Evidence.read("octune_runs/bert")        # from its workspace, finished or not
evidence = result.evidence                          # from memory, workspace or not
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from octune.calibration import Ranges
from octune.engine.journal import RANGES, Journal
from octune.errors import WorkspaceError

__all__ = ["Evidence"]

log = logging.getLogger("octune")


@dataclass(frozen=True)
class Evidence:
    """The journal of a run, and what calibration saw of the activations; no ranges where there are none.
    ``written`` is when the file of the ranges was.
    """

    journal: Journal
    ranges: Ranges
    written: int | None = None

    @classmethod
    def read(cls, workspace: str | Path, before: Evidence | None = None) -> Evidence:
        """What is on disk. Takes no lock, and writes nothing. Ranges that have not changed since they were
        read ``before`` are not read again.
        """
        folder = Path(workspace)
        journal, path = Journal.read(folder), folder / RANGES
        if not path.is_file():
            return cls(journal, Ranges())
        written = path.stat().st_mtime_ns
        if before is not None and before.written == written:
            return cls(journal, before.ranges, written)
        try:
            return cls(journal, Ranges.load(path), written)
        except WorkspaceError as error:
            log.warning("%s The report is made without them.", error)
            return cls(journal, Ranges())
