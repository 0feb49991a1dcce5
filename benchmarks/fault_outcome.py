"""What became of runs that were killed: counted, kept in a file between starts, and written as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "kept", "keep", "table"]


@dataclass
class Outcome:
    """What became of the runs of one backend."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)  # by the stage that was hit
    repeated: int = 0  # finished evaluations that were done again
    winners: int = 0  # runs that ended with another winner
    stray: set[str] = field(default_factory=set)  # files that should not be there
    failures: list[str] = field(default_factory=list)  # starts that did not work

    @property
    def clean(self) -> bool:
        return not (self.repeated or self.winners or self.stray or self.failures)

    def rarest(self, stages: Iterable[str]) -> str:
        """The stage that was hit least often."""
        return min(stages, key=lambda stage: self.kills[stage])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"kills": dict(self.kills.most_common()), "stray": sorted(self.stray)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Outcome:
        """What :meth:`to_json` made."""
        return cls(**told | {"kills": Counter(told["kills"]), "stray": set(told["stray"])})


def kept(file: Path | None, backends: Iterable[str]) -> dict[str, Outcome]:
    """The outcomes in a file, by backend; new ones where there are none."""
    told = _told(file)
    return {name: Outcome.from_json(told[name]) if name in told else Outcome() for name in backends}


def keep(file: Path | None, outcomes: Mapping[str, Outcome]) -> None:
    """Write the outcomes to a file, if one is named, beside those of other backends."""
    if file is not None:
        told = _told(file) | {name: found.to_json() for name, found in outcomes.items()}
        file.write_text(json.dumps(told, indent=1))


def _told(file: Path | None) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file is not None and file.exists() else {}


def table(seed: int, outcomes: Mapping[str, Outcome]) -> list[str]:
    """The lines of the section in docs/reliability.md."""
    lines = [
        f"`octune tune`, `octune resume` and `octune report`, killed with SIGKILL (seed {seed}).",
        "",
        "| backend | runs | kills | finished evaluations done again | other winners | stray files "
        "| starts that failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in outcomes.items():
        numbers = (found.runs, found.kills.total(), found.repeated, found.winners)
        rest = (len(found.stray), len(found.failures))
        lines.append(f"| {name} | " + " | ".join(map(str, (*numbers, *rest))) + " |")
    stages = sum((found.kills for found in outcomes.values()), Counter[str]())
    hits = ", ".join(f"{name} {count}" for name, count in stages.most_common())
    return [*lines, "", f"Stages that were hit: {hits}."]
