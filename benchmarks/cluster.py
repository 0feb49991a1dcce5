"""What a Ray cluster gains, and what a night of tuning costs on one.

python benchmarks/cluster.py                      # measure, check the simulation, plan the night
python benchmarks/cluster.py --known 0.3 19       # plan the night with constants that were measured before
python benchmarks/cluster.py --squad SHARED       # SQuAD on two nodes of one CPU against this process
python benchmarks/cluster.py --harm SHARED        # what of a harm probe every worker does again

The cluster is a real one, of nodes on this machine. Its evaluation sleeps, because four workers cannot
compute on two cores: what is measured is how well work is spread. From the constants that it finds (what a
shard costs the driver, what starting workers costs) a simulation foretells the same runs with 1, 2 and 4
workers, and then those that are too large for this machine. How long models are evaluated comes from
benchmarks/zoo_rows, which other runs have measured on a machine of two cores.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import octune

ROOT = Path(__file__).resolve().parents[1]
# Nothing here listens on a network, and nothing is reported. Read when Ray is imported.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

BATCHES, NAP, WORKERS, PLANS = 300, 0.05, (1, 2, 4), 4
SPREAD = ("baseline", "trial", "calibration", "harm")  # what is given away; all else stays with the driver
CALIBRATION_BATCHES = 16  # 128 samples of 8
REPEATED = 0.27  # of harm: each worker runs the whole model, and its own ops in int8 (--harm measures it)
MODELS, NODES, NIGHT = 1000, 50, 8 * 3600.0
CORES_OF_ROWS = 2  # of the machine whose rows these are: a node of the simulation is such a machine
TOLERANCE = 0.15


@dataclass(frozen=True)
class Constants:
    """Seconds: what each ``shard`` costs the driver, and how long workers take to ``start``, all together."""

    shard: float
    start: float


def evaluation(seconds: float, parts: int, workers: int, known: Constants, plans: int = 1) -> float:
    """Seconds of one evaluation that takes one worker ``seconds``, in ``parts`` equal batches: the driver
    hands out one shard after the other, and a worker takes the next when it is free. Of several ``plans``
    that are scored at the same time, the next one's shards follow the last one's.
    """
    from octune.engine.ray.rounds import AHEAD, LARGEST, SHARD_SECONDS

    each, driver = seconds / parts, 0.0
    free = [0.0] * workers
    for _ in range(plans):
        left, first = parts, True
        while left:
            fair = ceil(left / (AHEAD * workers))
            size = 1 if first else max(1, min(LARGEST, round(SHARD_SECONDS / max(each, 1e-6)), fair))
            size, first = min(size, left), False
            driver += known.shard
            heapq.heappush(free, max(heapq.heappop(free), driver) + size * each)
            left -= size
    return max(*free, driver)


def tuned(row: dict[str, Any], nodes: int, known: Constants) -> float:
    """Seconds to tune the model of a row with this many nodes that score."""
    alone, given = 0.0, 0.0
    for stage, seconds in row["stages"].items():
        if stage not in SPREAD:
            alone += seconds
        elif stage == "calibration":  # as many batches for each
            given += ceil(CALIBRATION_BATCHES / nodes) / CALIBRATION_BATCHES * seconds
        elif stage == "harm":
            given += (REPEATED + (1 - REPEATED) / nodes) * seconds
        else:
            given += evaluation(seconds, max(1, ceil(row["n"] / 8)), nodes, known)
    # workers prepare the model as the driver does
    return known.start + alone + given + row["stages"].get("prepare", 0.0)


def night(row: dict[str, Any], nodes: int, known: Constants) -> tuple[float, int]:
    """Hours for all models, and the nodes of each group that shares one: a group takes model after model, and
    one node of each is its driver. A group of one needs no cluster.
    """
    found = []
    for group in range(2, nodes + 1):
        rounds = ceil(MODELS / (nodes // group))
        found.append((rounds * tuned(row, group - 1, known) / 3600, group))
    alone = ceil(MODELS / nodes) * sum(row["stages"].values()) / 3600
    return min([*found, (alone, 1)])


# -- measuring -----------------------------------------------------------------------------------------------


class Naps:
    """Evaluation batches that take a while to be picked."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, number: int) -> Any:
        time.sleep(NAP)
        return self.batches[number % len(self.batches)]


def measured(address: str, workers: int) -> tuple[float, float, float]:
    """Seconds that fp32's evaluation takes, those of several plans together, and those of hiring."""
    import numpy as np
    import torch

    import octune

    random = np.random.default_rng(0)
    inputs = [torch.tensor(random.standard_normal((4, 16)), dtype=torch.float32) for _ in range(8)]
    labelled = Naps([(batch, torch.zeros(4, dtype=torch.long)) for batch in inputs])
    layers = [torch.nn.Linear(16, 16) for _ in range(3)]
    result = octune.tune(
        torch.nn.Sequential(*layers, torch.nn.Linear(16, 2)),
        calibration=inputs,
        evaluation=labelled,
        metric="accuracy",
        criterion={"absolute": 1},  # all plans pass, so all are scored to the end
        config={
            "engine": {"name": "ray", "address": address, "cpus": 1, "workers": workers},
            "performance": {"compile": "never", "iterations": 1, "warmup": 0, "threads": 1},
            "tuning": {
                "strategy": "random",
                "max_trials": PLANS,
                "timeout": 3600,
                "objective": "modelsize",
            },
        },
        progress=False,
    )
    if len(result.trials) != PLANS:
        raise RuntimeError(f"{len(result.trials)} plans were tried, not {PLANS}")
    return result.baseline.seconds, result.stages["trial"], result.stages["cluster"]


def shard_cost(address: str) -> float:
    """Seconds of the driver for each shard: of many that do nothing."""
    from octune.engine.ray import Crew, Wanted
    from octune.engine.ray.kind import describe
    from octune.engine.ray.rounds import Shard

    crew = Crew(Wanted(address, cpus=1, workers=4))
    try:
        crew.start(describe())
        list(crew.run([Shard("idle", (), 1)] * 50))  # warm
        begun = time.perf_counter()
        list(crew.run([Shard("idle", (), 1)] * 1000))
        return (time.perf_counter() - begun) / 1000
    finally:
        crew.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--squad", type=Path, metavar="SHARED", help="compare on SQuAD; its models and data")
    parser.add_argument("--harm", type=Path, metavar="SHARED", help="measure what each worker does again")
    parser.add_argument("--samples", type=int, help="with --squad: only this many windows")
    parser.add_argument(
        "--known",
        type=float,
        nargs=2,
        metavar=("MS", "SECONDS"),
        help="of a shard, and until workers are there",
    )
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT)]
    from tests.ray_cluster import cluster

    from octune.errors import plural

    if options.known is not None:
        plan_night(Constants(options.known[0] / 1000, options.known[1]))
        return 0
    if options.harm is not None:
        return repeated(options.harm)
    if options.squad is not None:
        with cluster({"num_cpus": 1}, {"num_cpus": 1}) as address:
            return squad(address, options.squad, options.samples)
    with cluster(*[{"num_cpus": 1}] * max(WORKERS)) as address:
        shard = shard_cost(address)
        seconds = {workers: measured(address, workers) for workers in WORKERS}
    known = Constants(shard, max(start for *_, start in seconds.values()))
    print(f"a shard costs the driver {1000 * shard:.1f} ms; workers start in {known.start:.1f} s")
    off = 0.0
    for what, place, plans in (("fp32", 0, 1), (f"{PLANS} plans of random", 1, PLANS)):
        for workers, found in seconds.items():
            told = evaluation(BATCHES * NAP, BATCHES, workers, known, plans)
            off = max(off, abs(told / found[place] - 1))
            gain = seconds[1][place] / found[place]
            print(
                f"{what}, {plural(workers, 'worker')}: {found[place]:.2f} s, {gain:.2f}x; "
                f"the simulation says {told:.2f} s"
            )
    plan_night(known)
    return int(off > TOLERANCE)


def plan_night(known: Constants) -> None:
    """Say how long each model of the zoo takes alone and with nodes that score, and what a night comes to."""
    from octune.errors import plural

    print(f"{MODELS} models on {NODES} nodes of {CORES_OF_ROWS} cores, in {NIGHT / 3600:.0f} hours:")
    for file in sorted((ROOT / "benchmarks" / "zoo_rows").glob("*.json")):
        row = json.loads(file.read_text())
        hours, group = night(row, NODES, known)
        verdict = "" if hours * 3600 <= NIGHT else ", too long"
        alone, shared = sum(row["stages"].values()), tuned(row, 8, known)
        print(
            f"  {row['name']}: {alone:.0f} s alone, {shared:.0f} s with 8 nodes that score; "
            f"all in {hours:.1f} h, {plural(group, 'node')} for each{verdict}"
        )


def repeated(shared: Path) -> int:
    """Which share of the CPU's time a harm probe takes that is asked for no op: what all workers do again."""
    from octune.job import Job
    from octune.request import Request

    task = {"data": {"task": "sst-2", "folder": str(shared / "data" / "glue" / "SST-2")}, "batch_size": 8}
    settings = {
        "model": {"path": str(shared / "models" / "minilm-l6-sst2")},
        "calibration": task,
        "performance": {"threads": 1},
    }
    with Job.of(Request(None, config=settings, unchecked=True, workspace=False)) as job:
        backend, survey = job.study.backend, job.study.survey
        survey.prepare(job.calibration)
        ranges = survey.calibrate(job.calibration, 64)
        inputs = [backend.split(job.calibration.first())[0]]
        candidates = {op.name: [s for s in op.schemes if s.dtype != "fp32"] for op in backend.ops()}
        spent = []
        for only in ([], None):
            begun = time.process_time()
            backend.harm(candidates, ranges, inputs, only)
            spent.append(time.process_time() - begun)
    print(f"harm of all ops: {spent[1]:.2f} s; of none: {spent[0]:.2f} s, {spent[0] / spent[1]:.0%}")
    return 0


def squad(address: str, shared: Path, samples: int | None) -> int:
    """Tune on two nodes and in this process; exit code 1 if an item, a verdict or the winner differs."""
    import octune

    task = {"data": {"task": "squad", "folder": str(shared / "data" / "squad")}}
    found: dict[str, octune.Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ray", "local"):
            begun = time.perf_counter()
            result = found[name] = octune.tune(
                config={
                    "model": {"path": str(shared / "models" / "minilm-l6-squad")},
                    "calibration": {**task, "samples": 32},
                    "evaluation": {**task, "samples": samples},
                    "performance": {"compile": "never", "threads": 1, "iterations": 3, "warmup": 1},
                    "tuning": {"objective": "modelsize"},  # what is timed must not decide between the two
                    "engine": {"name": name, "address": address},
                    "workspace": {"path": Path(folder) / name},
                },
                progress=False,
            )
            print(
                f"{name}: fp32 {result.baseline.score}, winner {result.best.score}, "
                f"{time.perf_counter() - begun:.0f} s, fp32 scored in {result.baseline.seconds:.0f} s",
                flush=True,
            )
    return _compared(found["local"], found["ray"])


def _compared(local: octune.Result, ray: octune.Result) -> int:
    """Say how much of two results is the same, item by item; 1 if anything differs."""
    import numpy as np

    pairs = list(zip([local.baseline, *local.trials], [ray.baseline, *ray.trials], strict=False))
    differ = len(local.trials) != len(ray.trials) or local.plan != ray.plan
    for here, there in pairs:
        a, b = here.score.items, there.score.items
        equal = int((a == b).sum()) if a.size == b.size else 0
        index = np.array_equal(here.score.index, there.score.index) if here.score.partial else True
        same = here.plan == there.plan and here.verdict == there.verdict and index
        print(
            f"{here.form} ({here.reason}): {equal} of {a.size} items equal, plan and verdict "
            f"{'equal' if same else 'DIFFER'}: {here.score} and {there.score}"
        )
        differ = differ or equal < a.size or not same
    print(f"the winner {'is the same' if local.plan == ray.plan else 'DIFFERS'}")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
