"""Kills tuning runs at random moments and resumes them, until they end: is anything that was finished done
again, is the winner the same, does anything stay behind?

    python benchmarks/faults.py --kills 100                                 # over all three backends
    python benchmarks/faults.py --kills 10 --backend onnx --seed 3
    python benchmarks/faults.py --kills 100 --markdown docs/reliability.md

Each run is ``octune tune`` on a small real model, killed with SIGKILL after a random time, or as soon as its
journal has reached a random line: so every stage is hit, those that take no time as well. What ends a run
(the model is being saved) is hit, too. Ends with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_jobs import FRAMEWORKS, journal, project, scored, start
from fault_page import write

SLOW = "0.15"  # seconds of each scoring, so that kills hit trials as well
COMPILES = {
    "performance": {"compile": "auto"},
    "criterion": {"absolute": 0.5},
    "tuning": {"max_trials": 1, "strategy": "basic"},
}
KEPT = {"config.yaml", "example.npz", "journal.jsonl", "lock", "model", "ranges.npz"}


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


def main() -> int:
    options = _options()
    outcomes: dict[str, Outcome] = {}
    share = options.minutes / len(options.backend)
    for place, framework in enumerate(options.backend):
        outcome = outcomes[framework] = Outcome()
        count = options.kills // len(options.backend) + (place < options.kills % len(options.backend))
        with tempfile.TemporaryDirectory(prefix="octune-faults-") as folder:
            killed(
                Path(folder), framework, count, random.Random(f"{options.seed} {framework}"), outcome, share
            )
        print(json.dumps({"backend": framework, **_plain(outcome)}), flush=True)
    if options.markdown:
        write(options.markdown, "kills", _lines(options, outcomes))
    return 0 if all(outcome.clean for outcome in outcomes.values()) else 1


def killed(
    folder: Path,
    framework: str,
    kills: int,
    chance: random.Random,
    outcome: Outcome,
    minutes: float = math.inf,
) -> None:
    """Run jobs of two kinds until they were killed that often, or the time is over: one with several trials,
    and one whose winner is compiled.
    """
    kinds = [("trials", {}), ("forms", COMPILES)]
    wholes = {}
    for name, sections in kinds:
        project(folder / name, framework, **sections)
        wholes[name] = _whole(folder / name)
    deadline = time.monotonic() + 60 * minutes
    while sum(outcome.kills.values()) < kills and time.monotonic() < deadline:
        name = "forms" if chance.random() < 0.3 else "trials"
        left = kills - sum(outcome.kills.values())
        _one_run(folder / name, f"ws-{outcome.runs}", wholes[name], left, chance, outcome)
        outcome.runs += 1


def _whole(folder: Path) -> tuple[str, int, float]:
    """The winner of a run that nobody kills, how many lines its journal has, and how long it takes."""
    begun = time.monotonic()
    process = start(folder, "tune", "conf.yaml", "--workspace", "whole", "--json", SLOW=SLOW)
    output, errors = process.communicate(timeout=600)
    if process.returncode not in (0, 1):
        raise RuntimeError(errors)
    return _winner(json.loads(output)), len(journal(folder / "whole")), time.monotonic() - begun


def _winner(told: dict[str, Any]) -> str:
    return f"{told['best']['plan_digest']} {told['met']}"


def _one_run(
    folder: Path,
    name: str,
    whole: tuple[str, int, float],
    kills: int,
    chance: random.Random,
    outcome: Outcome,
) -> None:
    (folder / "calls.txt").unlink(missing_ok=True)
    winner, lines, seconds = whole
    workspace, beside = folder / name, {path.name for path in folder.iterdir()} | {name, "calls.txt"}
    for _ in range(min(kills, chance.randint(1, 4))):
        process = _started(folder, name)
        hit = _kill(process, workspace, chance, lines, seconds)
        if hit is None:  # it came to its end before
            break
        outcome.kills[hit] += 1
    process = _started(folder, name)
    output, errors = process.communicate(timeout=600)
    if process.returncode not in (0, 1):
        outcome.failures.append(errors[-500:])
        return
    found = _winner(json.loads(output))
    outcome.winners += found != winner
    outcome.repeated += repeated(folder, workspace)
    strays = {path.name for path in folder.iterdir()} - beside - {"__pycache__"}
    outcome.stray |= strays | ({path.name for path in workspace.iterdir()} - KEPT)


def _started(folder: Path, name: str) -> subprocess.Popen[str]:
    there = (folder / name / "config.yaml").exists()
    words = ("resume", name) if there else ("tune", "conf.yaml", "--workspace", name)
    return start(folder, *words, "--json", SLOW=SLOW)


def _kill(
    process: subprocess.Popen[str], workspace: Path, chance: random.Random, lines: int, seconds: float
) -> str | None:
    """Kill it after a random time, or when its journal has so many lines; the stage that this has hit, or
    None if it has ended.
    """
    before = len(journal(workspace))
    if chance.random() < 0.25:
        deadline, wanted = time.monotonic() + chance.uniform(0.2, seconds), 10**9
    else:
        deadline, wanted = time.monotonic() + 10 * seconds, before + chance.randint(1, lines)
    while process.poll() is None and time.monotonic() < deadline and _count(workspace) < wanted:
        time.sleep(0.001)
    time.sleep(chance.choice((0.0, 0.0, chance.uniform(0.0, 0.3))))
    if process.poll() is not None:
        process.communicate()
        return None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    records = journal(workspace)
    last = next((record for record in reversed(records) if record["event"] in ("stage", "result")), None)
    if len(records) <= before or last is None:
        return "opening"
    return "saving" if last["event"] == "result" else str(last["name"])


def _count(workspace: Path) -> int:
    try:
        return (workspace / "journal.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def repeated(folder: Path, workspace: Path) -> int:
    """How many evaluations were done again although they were finished: by the journal, where an answer must
    not stand twice, and by what candidates have answered, where only the last one of a process that was
    killed may come again.
    """
    answers = Counter(
        json.dumps(
            {k: v for k, v in record.items() if k in ("event", "form", "digest", "samples", "trial", "plan")}
        )
        for record in journal(workspace)
        if record["event"] in ("baseline", "trial", "speed", "held out", "plan harm", "harm", "cost")
    )
    twice = sum(count - 1 for count in answers.values())
    by_process: dict[str, list[str]] = {}
    for pid, digest in scored(folder):
        by_process.setdefault(pid, []).append(digest)
    finished: set[str] = set()
    for digests in by_process.values():
        twice += len(finished & set(digests))
        finished |= set(digests[:-1])
    return twice


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "runs": outcome.runs,
        "kills": sum(outcome.kills.values()),
        "by stage": dict(outcome.kills.most_common()),
        "repeated": outcome.repeated,
        "other winners": outcome.winners,
        "stray": sorted(outcome.stray),
        "failures": outcome.failures,
    }


def _lines(options: argparse.Namespace, outcomes: dict[str, Outcome]) -> list[str]:
    lines = [
        f"`octune tune` and `octune resume`, killed with SIGKILL at random moments (seed {options.seed}).",
        "",
        "| backend | runs | kills | finished evaluations done again | other winners | stray files "
        "| starts that failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in outcomes.items():
        numbers = (found.runs, sum(found.kills.values()), found.repeated, found.winners)
        rest = (len(found.stray), len(found.failures))
        lines.append(f"| {name} | " + " | ".join(map(str, (*numbers, *rest))) + " |")
    stages = sum((found.kills for found in outcomes.values()), Counter[str]())
    hits = ", ".join(f"{name} {count}" for name, count in stages.most_common())
    return [*lines, "", f"Stages that were hit: {hits}."]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill tuning runs at random moments, and resume them.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--backend", action="append", choices=FRAMEWORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--markdown", type=Path, help="write the figures into this page")
    options = parser.parse_args()
    options.backend = options.backend or list(FRAMEWORKS)
    return options


if __name__ == "__main__":
    sys.exit(main())
