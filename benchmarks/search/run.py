"""How many evaluations does a strategy need, and how much is int8 in the end?

python benchmarks/search/run.py                                # both cases, all strategies: a few minutes
python benchmarks/search/run.py --case cnn --strategy auto     # one of them
python benchmarks/search/run.py --markdown docs/search.md      # write the tables into a page
python benchmarks/search/run.py --peer-python peer/bin/python  # with Neural Compressor, see peer.py
python benchmarks/search/run.py --no-portable                  # with all 8 bits of the weights

Two models that read scikit-learn's digits, with outlier channels that change nothing in fp32 and break plain
int8 (see cases.py), and a criterion of 1 %. Ends with 1 if auto needs more than 2 + log2(n) evaluations, or
leaves more ops in float than the yardstick.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

import pages
import torch
from cases import CASES, Case
from rich.console import Console
from rich.table import Table

import octune
from octune.backends import Settings, backend_for
from octune.calibration import collect
from octune.machine import probe_machine
from octune.plan import Plan, Scheme
from octune.search import STRATEGIES

LOSS = 0.01
TRIALS = 40  # for strategies that go on for as long as they may
HEADINGS = ("", "evaluations", "seconds", "int8 ops", "repaired", "accuracy", "speed-up, eager", "1 % kept")


@dataclass
class Row:
    """What one contender needed, and what it got."""

    name: str
    evaluations: int | None
    seconds: float | None
    int8: int | None
    ops: int
    repaired: int
    accuracy: float | None
    speedup: float | None
    met: bool

    def cells(self) -> list[str]:
        """As text, in the order of the headings."""
        return [
            self.name,
            "-" if self.evaluations is None else str(self.evaluations),
            "-" if self.seconds is None else f"{self.seconds:.1f}",
            "-" if self.int8 is None else f"{self.int8} of {self.ops}",
            str(self.repaired) if self.repaired else "-",
            "-" if self.accuracy is None else f"{self.accuracy:.4f}",
            "-" if self.speedup is None else f"{self.speedup:.2f}x",
            "yes" if self.met else "no",
        ]


class Yardstick:
    """Plain int8 or fp32 for every op, and nothing else: what can be had by falling back alone."""

    def __init__(self, case: Case, portable: bool) -> None:
        self.case, self.backend = case, backend_for(case.model, Settings(portable=portable))
        inputs = [self.backend.split(batch)[0] for batch in case.calibration]
        self.backend.prepare(inputs[0])
        self.ranges = collect(self.backend, inputs, sum(len(label) for _, label in case.calibration))
        self.ops = [op.name for op in self.backend.ops()]
        self.baseline, self.evaluations = case.accuracy(case.model), 1

    def accuracy(self, quantized: tuple[str, ...]) -> float:
        self.evaluations += 1
        return self.case.accuracy(
            self.backend.apply(Plan(dict.fromkeys(quantized, Scheme.int8())), self.ranges)
        )

    def passes(self, accuracy: float) -> bool:
        return accuracy >= (1 - LOSS) * self.baseline

    def plain(self) -> Row:
        """Everything in int8, calibrated by minimum and maximum."""
        score = self.accuracy(tuple(self.ops))
        return Row("plain int8", 2, None, len(self.ops), len(self.ops), 0, score, None, self.passes(score))

    def exhaustive(self) -> Row:
        """All subsets, the largest first: the first that passes has the most ops in int8."""
        begun = time.perf_counter()
        for count in range(len(self.ops), -1, -1):
            scores = {subset: self.accuracy(subset) for subset in itertools.combinations(self.ops, count)}
            best = max(scores.values())
            if self.passes(best):
                return self._row("yardstick: every fallback", count, best, begun)
        raise AssertionError("fp32 passes")

    def greedy(self) -> Row:
        """The op whose fallback helps most goes to fp32, then the next, until one passes."""
        begun, quantized = time.perf_counter(), tuple(self.ops)
        score = self.accuracy(quantized)
        while not self.passes(score):
            rests = [tuple(op for op in quantized if op != out) for out in quantized]
            score, quantized = max((self.accuracy(rest), rest) for rest in rests)
        return self._row("yardstick: greedy fallback", len(quantized), score, begun)

    def _row(self, name: str, count: int, score: float, begun: float) -> Row:
        return Row(
            name, self.evaluations, time.perf_counter() - begun, count, len(self.ops), 0, score, None, True
        )


def tuned(case: Case, strategy: str, portable: bool = True) -> Row:
    """One run of Octune, with size as the objective: what comes out then does not hang on the speed of the
    machine.
    """
    begun = time.perf_counter()
    result = octune.tune(
        case.model,
        calibration=case.calibration,
        evaluation=case.evaluation,
        metric="accuracy",
        criterion=octune.Relative(LOSS),
        config={
            "performance": {"compile": "never", "iterations": 5, "threads": 1, "portable": portable},
            "tuning": {"strategy": strategy, "objective": "modelsize", "max_trials": TRIALS},
        },
    )
    score = result.best.score
    return Row(
        f"octune {strategy}",
        1 + len(result.trials),
        time.perf_counter() - begun,
        len(result.plan.names("int8")),
        len(result.plan),
        sum(bool(scheme.repairs) for scheme in result.plan.values()),
        None if score is None else score.value,
        result.speedup,
        result.met,
    )


def peer(python: str, name: str, case: Case, ops: int) -> Row:
    """Neural Compressor in its own environment, on the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        torch.save(case.model.state_dict(), weights)
        command = [python, str(Path(__file__).with_name("peer.py")), name, str(weights), str(TRIALS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
    got = json.loads(lines[-1])
    return Row(
        got["tool"],
        got["evaluations"],
        got["seconds"],
        got["int8"],
        ops,
        0,
        got["accuracy"],
        None,
        got["met"],
    )


def compare(
    name: str, strategies: list[str], python: str | None, portable: bool, console: Console
) -> tuple[Row, list[Row]]:
    """The yardstick and all rows of a case."""
    case = CASES[name](0)
    yardstick = Yardstick(case, portable)
    count = len(yardstick.ops)
    rows = [Row("fp32", 1, None, 0, count, 0, yardstick.baseline, 1.0, True), yardstick.plain()]
    console.print(f"{name}: yardstick")
    best = yardstick.exhaustive() if count <= 8 else yardstick.greedy()
    rows.append(best)
    for strategy in strategies:
        console.print(f"{name}: {strategy}")
        rows.append(tuned(case, strategy, portable))
    if python is not None:
        console.print(f"{name}: peer")
        rows.append(peer(python, name, case, count))
    return best, rows


def machine() -> str:
    """What the numbers depend on."""
    return f"{probe_machine().cpu}, one thread, Python {platform.python_version()}, torch {torch.__version__}"


def write(path: Path, tables: dict[str, list[Row]], note: str) -> None:
    """Put the tables between the markers of a page."""
    lines = [f"{machine()}. {note}".strip(), ""]
    for name, rows in tables.items():
        lines += [f"### {name}", "", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in rows] + [""]
    pages.write(path, "search", lines)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--strategy", action="append", choices=sorted(STRATEGIES))
    parser.add_argument(
        "--markdown", type=Path, help="the page to write the tables into, between its markers"
    )
    parser.add_argument("--peer-python", help="a Python that has neural-compressor 2.6 and torch")
    parser.add_argument("--note", default="", help="a remark for the page")
    parser.add_argument("--no-portable", action="store_true", help="use all 8 bits of the weights")
    options = parser.parse_args()
    # the models are small, and two threads that wait for each other crawl on a busy machine
    torch.set_num_threads(1)
    console, tables, failed = Console(), {}, False
    for name in options.case or sorted(CASES):
        strategies, portable = options.strategy or sorted(STRATEGIES), not options.no_portable
        best, rows = compare(name, strategies, options.peer_python, portable, console)
        tables[name] = rows
        table = Table(title=name, title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row.cells())
        console.print(table)
        for row in rows:
            if row.name == "octune auto":
                bound = 2 + math.log2(row.ops)
                failed |= (row.evaluations or 0) > bound or not row.met or (row.int8 or 0) < (best.int8 or 0)
    if options.markdown:
        write(options.markdown, tables, options.note)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
