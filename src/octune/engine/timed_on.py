"""Which CPU the speeds of a run are of, and on how many threads: times of two are never compared.

TimedOn.of(backend)             # here
TimedOn.before(journal)         # of a run that is resumed; None for a new one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from octune.backends.base import Backend
from octune.engine.journal import Journal
from octune.errors import WorkspaceError, plural
from octune.machine import probe_machine

__all__ = ["TimedOn"]


@dataclass(frozen=True, slots=True)
class TimedOn:
    """One kind of CPU, with as many threads as models had there."""

    cpu: str
    threads: int

    def __str__(self) -> str:
        return f"{self.cpu} with {plural(self.threads, 'thread')}"

    @classmethod
    def of(cls, backend: Backend) -> TimedOn:
        """Of this process."""
        machine = probe_machine()
        return cls(machine.cpu, backend.environment().get("threads") or machine.cores)

    @classmethod
    def before(cls, journal: Journal) -> TimedOn | None:
        """What a run that is resumed has begun with."""
        cluster = journal.last("cluster")
        if cluster is None and journal.last("baseline") is None:
            return None
        with journal.understood():
            if cluster is not None:
                return cls.from_json(cluster["timed on"])
            first = journal.records("run")[0]["environment"]
            return cls(str(first["machine"]["cpu"]), int(first["threads"]))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TimedOn:
        return cls(str(data["cpu"]), int(data["threads"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def go_on(self, journal: Journal) -> None:
        """WorkspaceError if the run's speeds are of another one."""
        before = self.before(journal)
        if before is not None and before != self:
            raise WorkspaceError(
                f"The run in {journal.folder} was begun on another kind of CPU ({before}, here {self}): its "
                "speeds cannot be compared with those of this machine. Resume it on a machine of that kind, "
                "or choose another workspace.path."
            )
