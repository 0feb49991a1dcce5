"""What every rule of ``auto`` is good for: each is switched off in turn, on simulated worlds (worlds.py) and
on the two models of cases.py.

python benchmarks/search/ablation.py                               # a few minutes
python benchmarks/search/ablation.py --markdown docs/search.md     # write the table into a page
python benchmarks/search/ablation.py --against ../other/src        # another version of Octune as one more row

A rule that can be switched off without a loss is not worth its lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

import pages
import torch
from cases import CASES, Case
from rich.console import Console
from rich.table import Table
from run import tuned
from worlds import KINDS, Simulated, worlds

from octune.cost.load import Patience
from octune.plan import Plan, Scheme
from octune.search import Auto, Space

MARKER = "ablation"
SEEDS = 12
HEADINGS = (
    "rule", "evaluations", "median, worst", "int8 ops", "worlds met", "cost of the winner", *sorted(CASES)
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of all worlds (means; ``int8`` and ``cost`` are shares), and of each case: evaluations with
    fp32's, and int8 ops.
    """

    evaluations: float
    median: float
    worst: int
    int8: float
    met: float
    cost: float
    cases: dict[str, str]

    def cells(self, full: Outcome | None = None) -> list[str]:
        """As text; with ``full``, what differs from it."""
        base = [0.0] * 4 if full is None else [full.evaluations, full.int8, full.met, full.cost]
        sign = "" if full is None else "+"
        evaluations, int8, met, cost = (
            value - other
            for value, other in zip((self.evaluations, self.int8, self.met, self.cost), base, strict=True)
        )
        return [
            f"{evaluations:{sign}.2f}", f"{self.median:g}, {self.worst}", f"{100 * int8:{sign}.1f} %",
            f"{100 * met:{sign}.1f} %", f"{100 * cost:{sign}.1f} %", *self.cases.values(),
        ]  # fmt: skip


def rules() -> dict[str, AbstractContextManager[Any]]:
    """Every rule, with what switches it off."""
    from octune.search import auto, space, start

    def nothing(*_: object) -> Iterator[None]:
        return
        yield

    def middle(_: Auto, plans: list[Plan], low: int, high: int, harm: float) -> int:
        return (low + high) // 2

    return {
        "repairs before the first evaluation": patch.object(start, "_repaired", lambda _, __, plan: plan),
        "a repair halves the harm (of its op, of the plan)": patch.object(start, "HELPS", float("inf")),
        "a harm of 0.002 is comfortable": patch.object(start, "COMFORTABLE", 0.0),
        "a repair costs next to nothing": patch.object(space, "REPAIR", 0.049),
        "whole plans are measured": patch.object(Space, "plan_harm", Space.total_harm),
        "ops that are harmful together": patch.object(start, "interacting", lambda *_, **__: []),
        "hopeless plans are not evaluated": patch.object(start, "HOPELESS", float("inf")),
        "the jump follows the loss": patch.object(auto, "_excess", lambda trial: 2.0),
        "twice the harm goes": patch.object(auto, "CAUTION", 1.0),
        "the path is searched by harm": patch.object(Auto, "_between", middle),
        "bf16 is given up after a failure": patch.object(auto, "_without_bf16", lambda ladder: ladder),
        "a few ops alone, if nothing passes": patch.object(Auto, "_a_few_alone", nothing),
        "single ops are given back": patch.object(Auto, "_give_back", nothing),
        "four fifths in int8 are enough": patch.object(auto, "NEARLY_ALL", 2.0),
        "float counts for more than its timing": patch.object(space, "UNSEEN", 1.0),
        "what a move costs at least": patch.object(space, "LEAST", 1e-9),
        "timings on a grid": patch.object(space, "on_grid", lambda cost: cost),
    }


@cache
def case(name: str) -> Case:
    """Trained once."""
    return CASES[name](0)


def measure(seeds: int) -> Outcome:
    """All worlds and both cases, with the rules as they are now."""
    rows = [_in(world) for world in worlds(seeds)]
    evaluations, int8, met, cost = zip(*rows, strict=True)
    with patch.object(Patience, "wait"):  # no speeds are compared here, so the machine need not be quiet
        found = {name: tuned(case(name), "auto") for name in sorted(CASES)}
    return Outcome(
        statistics.mean(evaluations),
        statistics.median(evaluations),
        max(evaluations),
        statistics.mean(int8),
        statistics.mean(met),
        statistics.mean(cost),
        {name: f"{row.evaluations}, {row.int8} of {row.ops}" for name, row in found.items()},
    )


def _in(world: Simulated) -> tuple[int, float, bool, float]:
    """Evaluations without fp32's, the share of int8 ops in the winner, whether there is one, and its cost."""
    world.search(Auto(world.seen))
    fp32 = sum(world.costs[op, Scheme.fp32()] for op in world.harm)
    passing = [trial.plan for trial in world.trials if trial.passed]
    if not passing:
        return len(world.trials), 0.0, False, 1.0
    best = min(passing, key=world.seen.total_cost)
    return len(world.trials), len(best.names("int8")) / len(best), True, world.seen.total_cost(best) / fp32


def other_version(source: Path, seeds: int) -> Outcome:
    """The same, with the Octune of another folder."""
    command = [sys.executable, __file__, "--json", "--seeds", str(seeds)]
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints the table, and writes it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"worlds of each of the {len(KINDS)} kinds")
    parser.add_argument("--against", type=Path, help="the src folder of another version of Octune")
    parser.add_argument("--markdown", type=Path, help="the page to write the table into")
    parser.add_argument("--json", action="store_true", help="all rules on, as one line of JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    full = measure(options.seeds)
    if options.json:
        print(json.dumps(asdict(full)))
        return
    rows = [["all rules", *full.cells()]]
    if options.against:
        rows.append(["the version before", *other_version(options.against, options.seeds).cells()])
    for name, off in rules().items():
        with off:
            rows.append([f"without: {name}", *measure(options.seeds).cells(full)])
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*row)
    Console(width=200).print(table)
    if options.markdown:
        lines = [f"{options.seeds * len(KINDS)} worlds of {len(KINDS)} kinds.", ""]
        lines += ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        pages.write(options.markdown, MARKER, lines)


if __name__ == "__main__":
    main()
