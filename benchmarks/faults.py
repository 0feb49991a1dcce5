"""Kills tuning runs in every stage and at random moments, and resumes them until they end: is anything that
was finished done again, is the winner the same, does anything stay behind?

    python benchmarks/faults.py --kills 100                                 # over all three backends
    python benchmarks/faults.py --kills 10 --backend onnx --seed 3
    python benchmarks/faults.py --kills 100 --markdown docs/reliability.md
    python benchmarks/faults.py --kills 100 --minutes 15 --rows rows.json   # again, until there are 100

Each run is ``octune tune`` on a small real model, then ``octune report``, killed with SIGKILL: when its
journal says that a stage has begun that was hit seldom so far, when it has reached a random line, or after a
random time. Ends with 1 if anything was lost, or if a stage was not hit by kills enough for all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_jobs import FRAMEWORKS, journal, project, scored, start
from fault_outcome import Outcome, keep, kept, table
from fault_page import write

SLOW = "0.15"  # seconds of each scoring, so that kills hit trials as well
COMPILES: dict[str, Any] = {
    "performance": {"compile": "auto", "compare_fp32": "always"},
    "criterion": {"absolute": 0.5},
    "tuning": {"max_trials": 1, "strategy": "basic"},
}
# What an op costs is another number in each run, so a run is compared with itself: see _same_costs.
COSTS: dict[str, Any] = {"tuning": {"objective": "performance", "max_trials": 3}}
KINDS: dict[str, dict[str, Any]] = {"trials": {}, "forms": COMPILES, "costs": COSTS}
# Every one of these is hit if there are kills enough; there are others that a run may have.
SOUGHT = (
    *("opening", "baseline", "prepare", "calibration", "harm", "cost"),
    *("look", "trial", "finalists", "saving", "report"),
)
KEPT = {"config.yaml", "example.npz", "journal.jsonl", "lock", "model", "ranges.npz", "report.html"}
# What others keep in the place for what need not stay, and the folder of Octune's own, which must be empty.
CACHES = {".ses", "torchinductor_root", f"octune-{os.getuid()}"}


@dataclass
class Whole:
    """A run that nobody kills: its winner, the lines of its journal, and how long it takes."""

    winner: str
    lines: int
    seconds: float
    stages: dict[str, float]  # seconds of each, in their order


def main() -> int:
    options = _options()
    outcomes = kept(options.rows, options.backend)

    def one(place: int, framework: str) -> None:
        count = options.kills // len(options.backend) + (place < options.kills % len(options.backend))
        outcome = outcomes[framework]
        with tempfile.TemporaryDirectory(prefix="octune-faults-") as folder:
            killed(
                Path(folder),
                framework,
                count,
                random.Random(f"{options.seed} {framework} {outcome.runs}"),
                outcome,
                options.minutes,
                after=lambda: keep(options.rows, outcomes),
            )
        print(json.dumps({"backend": framework, **outcome.to_json()}), flush=True)

    with ThreadPoolExecutor(len(options.backend)) as pool:  # most of the time is waiting
        list(pool.map(one, range(len(options.backend)), options.backend))
    total = sum(outcome.kills.total() for outcome in outcomes.values())
    if total < options.kills:
        print(f"{total} of {options.kills} kills in {options.minutes:g} minutes", file=sys.stderr)
    if options.markdown:
        write(options.markdown, "kills", table(options.seed, outcomes))
    missed = set(SOUGHT) - sum((outcome.kills for outcome in outcomes.values()), Counter[str]()).keys()
    if missed and options.kills >= 2 * len(SOUGHT):
        print(f"not hit: {', '.join(sorted(missed))}", file=sys.stderr)
        return 1
    return 0 if all(outcome.clean for outcome in outcomes.values()) else 1


def killed(
    folder: Path,
    framework: str,
    kills: int,
    chance: random.Random,
    outcome: Outcome,
    minutes: float = math.inf,
    kinds: Sequence[str] = tuple(KINDS),
    after: Callable[[], None] = lambda: None,
) -> None:
    """Run jobs until they were killed that often, or the time is over: one with several trials, one whose
    winner is compiled, and one whose ops are timed. ``after`` each it is told.
    """
    wholes: dict[str, Whole] = {}
    deadline = time.monotonic() + 60 * minutes
    if outcome.kills.total() >= kills:
        return
    for kind in kinds:
        project(folder / kind, framework, **KINDS[kind])
        wholes[kind] = _whole(folder / kind)
    stages = [stage for whole in wholes.values() for stage in whole.stages]
    while outcome.kills.total() < kills and time.monotonic() < deadline:
        sought = outcome.rarest(stages)
        kind = chance.choice([kind for kind in kinds if sought in wholes[kind].stages])
        left = kills - outcome.kills.total()
        _one_run(folder / kind, f"ws-{outcome.runs}", kind, wholes[kind], left, chance, outcome)
        outcome.runs += 1
        after()


def _whole(folder: Path) -> Whole:
    begun = time.monotonic()
    winner = _finished(_start(folder, "tune", "conf.yaml", "--workspace", "whole", "--json"))
    lines, seconds = journal(folder / "whole"), time.monotonic() - begun
    began = [(line["name"], line["seconds"]) for line in lines if line["event"] == "stage"]
    ends = [at for _, at in began[1:]] + [began[-1][1]]
    stages = {name: end - at for (name, at), end in zip(began, ends, strict=True)}
    stages = {"opening": 0.5, **stages, "saving": 0.01, "report": 0.01}
    return Whole(winner, len(lines), seconds, stages)


def _start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The command, whose folders for what need not stay are in ``tmp``."""
    (folder / "tmp").mkdir(exist_ok=True)
    return start(folder, *words, SLOW=SLOW, TMPDIR=str(folder / "tmp"))


def _finished(process: subprocess.Popen[str]) -> str:
    """The winner that a command tells; RuntimeError with what it says if it does not work."""
    output, errors = process.communicate(timeout=600)
    if process.returncode not in (0, 1):
        raise RuntimeError(errors[-500:])
    told = json.loads(output)
    return f"{told['best']['plan_digest']} {told['met']}"


def _one_run(
    folder: Path,
    name: str,
    kind: str,
    whole: Whole,
    kills: int,
    chance: random.Random,
    outcome: Outcome,
) -> None:
    (folder / "calls.txt").unlink(missing_ok=True)
    workspace, beside = folder / name, {path.name for path in folder.iterdir()} | {name, "calls.txt"}
    stages = [stage for stage in whole.stages if stage != "report"]
    for _ in range(min(kills, chance.randint(2, 5))):
        process = _begun(folder, name)
        hit = _kill(process, workspace, chance, whole, outcome.rarest(stages))
        if hit is None:  # it came to its end before
            break
        outcome.kills[hit] += 1
        kills -= 1
        if hit in stages:  # what comes before is not done again
            stages = stages[stages.index(hit) :]
    try:
        winner = _finished(_begun(folder, name))
        reporting = _start(folder, "report", name)
        if kills and outcome.rarest(whole.stages) == "report":
            outcome.kills["report"] += _killed_reporting(reporting, workspace, chance)
            reporting = _start(folder, "report", name)
        _, errors = reporting.communicate(timeout=600)
        if reporting.returncode:
            raise RuntimeError(errors[-500:])
        outcome.repeated += repeated(folder, workspace)
        strays = {path.name for path in folder.iterdir()} - beside - {"__pycache__", "tmp"}
        strays |= {path.name for path in workspace.iterdir()} - KEPT
        strays |= {path.name for path in (folder / "tmp").iterdir()} - CACHES
        strays |= {path.name for path in (folder / "tmp").glob("octune-*/*")}
        outcome.stray |= strays
        reference = _same_costs(folder, name) if kind == "costs" else whole.winner
        outcome.winners += winner != reference
    except RuntimeError as error:
        outcome.failures.append(str(error))


def _begun(folder: Path, name: str) -> subprocess.Popen[str]:
    there = (folder / name / "config.yaml").exists()
    words = ("resume", name) if there else ("tune", "conf.yaml", "--workspace", name)
    return _start(folder, *words, "--json")


def _same_costs(folder: Path, name: str) -> str:
    """The winner of a run that nobody kills, and that has timed its ops as this one has."""
    again = folder / f"{name}-again"
    shutil.copytree(folder / name, again, ignore=shutil.ignore_patterns("model", "report.html"))
    lines = (again / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [json.loads(line)["event"] for line in lines]
    (again / "journal.jsonl").write_bytes(b"".join(lines[: events.index("cost") + 1]))
    try:
        return _finished(_begun(folder, again.name))
    finally:
        shutil.rmtree(again)


def _kill(
    process: subprocess.Popen[str], workspace: Path, chance: random.Random, whole: Whole, sought: str
) -> str | None:
    """Kill it when a stage has begun, when its journal has some number of lines, or after some time; the
    stage that this has hit, or None if it has ended.
    """
    before, how = len(journal(workspace)), chance.random()
    deadline, wait = time.monotonic() + 20 * whole.seconds + 60, 0.0
    if how < 0.6:
        reached, wait = _begins(sought, workspace, before), chance.uniform(0, whole.stages[sought])
    elif how < 0.8:
        wanted = before + chance.randint(1, whole.lines)
        reached = lambda: _count(workspace) >= wanted  # noqa: E731
        wait = chance.choice((0.0, chance.uniform(0.0, 0.3)))
    else:
        deadline, reached = time.monotonic() + chance.uniform(0.2, whole.seconds), lambda: False
    while process.poll() is None and time.monotonic() < deadline and not reached():
        time.sleep(0.001)
    time.sleep(wait)
    if process.poll() is not None:
        process.communicate()
        return None
    _end(process)
    records = journal(workspace)
    last = next((record for record in reversed(records) if record["event"] in ("stage", "result")), None)
    if len(records) <= before or last is None:
        return "opening"
    return "saving" if last["event"] == "result" else str(last["name"])


def _begins(stage: str, workspace: Path, before: int) -> Callable[[], bool]:
    """Whether a stage has begun since the journal had that many lines."""
    if stage == "opening":
        return lambda: True
    if stage == "saving":  # the result is known, and a folder for the model is there
        return lambda: any(workspace.glob(".model-*"))
    needle, path = f'"name": "{stage}"'.encode(), workspace / "journal.jsonl"

    size = 0

    def begun() -> bool:
        nonlocal size
        with contextlib.suppress(OSError):
            if path.stat().st_size != size:
                lines = path.read_bytes().splitlines()
                size = sum(map(len, lines)) + len(lines)
                return any(b'"event": "stage"' in line and needle in line for line in lines[before:])
        return False

    return begun


def _killed_reporting(process: subprocess.Popen[str], workspace: Path, chance: random.Random) -> int:
    """Kill a report when its file is being written, or at any time; whether it had not ended before."""
    deadline = time.monotonic() + chance.choice((60.0, 60.0, chance.uniform(0.0, 2.0)))
    while process.poll() is None and time.monotonic() < deadline and not any(workspace.glob(".report*")):
        time.sleep(0.001)
    there = process.poll() is None
    _end(process)
    return int(there)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill tuning runs at random moments, and resume them.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--backend", action="append", choices=FRAMEWORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="kill no more after this time")
    parser.add_argument(
        "--rows", type=Path, help="keep the figures in this file, and go on with what is there"
    )
    parser.add_argument("--markdown", type=Path, help="write the figures into this page")
    options = parser.parse_args()
    options.backend = options.backend or list(FRAMEWORKS)
    return options


if __name__ == "__main__":
    sys.exit(main())
