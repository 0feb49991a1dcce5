"""Hundreds of trials in one process: do memory and open files stay flat?

    python benchmarks/soak.py --trials 300                          # each backend in a process of its own
    python benchmarks/soak.py --trials 300 --markdown docs/reliability.md

A trial leaves its plan and its score behind, a few bytes for each item scored, and nothing else. Ends with 1
if memory grows by more than MB_PER_TRIAL for each trial between a third of the trials and the end, or if
files stay open.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import yaml
from fault_jobs import ENVIRONMENT, FRAMEWORKS, project
from fault_page import write

import octune

MB_PER_TRIAL = 0.15
LAYERS = (64, *[48] * 6, 10)  # enough of them for so many plans
PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter(octune.Listener):
    """Reads after every trial what this process holds."""

    def __init__(self) -> None:
        self.readings: list[dict[str, float]] = []

    def trial(self, trial: octune.Trial) -> None:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        files = len(list(Path("/proc/self/fd").iterdir()))
        self.readings.append(
            {
                "mb": resident / 1e6,
                "files": files,
                "threads": threading.active_count(),
                "error": bool(trial.error),
            }
        )


def main() -> int:
    options = _options()
    if options.folder:
        print(json.dumps(_soaked(options.folder, options.trials)))
        return 0
    found = {}
    for framework in options.backend:
        with tempfile.TemporaryDirectory(prefix="octune-soak-") as folder:
            project(
                Path(folder),
                framework,
                LAYERS,
                tuning={"strategy": "exhaustive", "max_trials": options.trials},
            )
            command = [sys.executable, __file__, "--folder", folder, "--trials", str(options.trials)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **ENVIRONMENT}
            )
        found[framework] = _summary(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps({"backend": framework, **found[framework]}), flush=True)
    if options.markdown:
        write(options.markdown, "soak", _lines(found))
    flat = all(row["MB per trial"] <= MB_PER_TRIAL and row["files grown by"] <= 0 for row in found.values())
    return 0 if flat else 1


def _soaked(folder: Path, trials: int) -> list[dict[str, float]]:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    meter = Meter()
    settings: dict[str, Any] = yaml.safe_load(Path("conf.yaml").read_text())
    result = octune.tune(config={**settings, "workspace": {"path": "ws"}}, listener=meter)
    if len(result.trials) < trials:
        raise RuntimeError(f"only {len(result.trials)} of {trials} trials: {result.stopped_because}")
    return meter.readings


def _summary(readings: list[dict[str, float]]) -> dict[str, Any]:
    third, last = readings[len(readings) // 3], readings[-1]
    steps = len(readings) - 1 - len(readings) // 3
    return {
        "trials": len(readings) - 1,  # the first is fp32
        "failed": sum(bool(reading["error"]) for reading in readings),
        "MB after a third": round(third["mb"], 1),
        "MB at the end": round(last["mb"], 1),
        "MB per trial": round((last["mb"] - third["mb"]) / steps, 3),
        "open files": int(last["files"]),
        "files grown by": int(last["files"] - third["files"]),
        "threads grown by": int(last["threads"] - third["threads"]),
    }


def _lines(found: dict[str, dict[str, Any]]) -> list[str]:
    columns = list(next(iter(found.values())))
    return [
        "Resident memory and open files of one process, after each trial (a workspace is kept).",
        "",
        f"| backend | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {name} | {' | '.join(str(row[column]) for column in columns)} |"
            for name, row in found.items()
        ),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Many trials in one process.")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--backend", action="append", choices=FRAMEWORKS)
    parser.add_argument("--markdown", type=Path, help="write the figures into this page")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.backend = options.backend or list(FRAMEWORKS)
    return options


if __name__ == "__main__":
    sys.exit(main())
