"""A run of a large model that never was: a workspace with as many ops as asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from octune.calibration import Ranges
from octune.calibration.observer import Observer, TensorStats
from octune.cost.latency import FP32, Speedup, Spread
from octune.criterion import Relative
from octune.engine.journal import RANGES, Journal
from octune.plan import Plan, Scheme
from octune.result import Trial
from octune.score import Score

ROLES = ("self.query", "self.key", "self.value", "output.dense", "ff.in", "ff.out", "norm.proj", "gate")
PLAIN, DYNAMIC = Scheme.int8(range_method="mse"), Scheme.int8("dynamic")
REPAIRED = Scheme.int8(repairs=("smooth", "bias"))


def workspace(folder: Path, ops: int = 400, trials: int = 40, items: int = 2000) -> Path:
    """A finished run: some trials failed, some ops stayed float."""
    rng = np.random.default_rng(0)
    names = [f"model.encoder.layer.{n // len(ROLES)}.{ROLES[n % len(ROLES)]}" for n in range(ops)]
    harms = dict(zip(names, 10 ** rng.uniform(-7, -1, ops), strict=True))
    base = (rng.random(items) < 0.9).astype(float)
    baseline = Trial(
        Plan({name: Scheme.fp32() for name in names}),
        "fp32", "the model as it came", Score.from_items(base, hits=base, limits=(0.0, 1.0)),
        latency_ms=80.0, speed=FP32, size=440_000_000, seconds=60.0,
    )  # fmt: skip
    start = {
        "model": "0" * 64,
        "evaluation": {"by": "accuracy", "samples": None, "certify": None},
        "criterion": Relative(0.01).to_json(),
        "objective": "performance", "strategy": "auto", "seed": 1978,
    }  # fmt: skip
    now = time.time() - 3600
    with Journal.open(folder, start) as journal:
        journal.append("run", _run(now))
        journal.append("stage", {"name": "baseline", "detail": "scoring the fp32 model", "at": now + 1})
        pairing = {"counts": [items], "digests": ["0"], "items": None, "kinds": {}}
        journal.append("baseline", {"answer": {"pairing": pairing, "trial": baseline.to_json()}})
        described = [{"name": n, "kind": "linear", "parameters": 1000, "note": ""} for n in names]
        multiplied = {"ops": dict.fromkeys(names, 1000), "unseen": {"matmul": 50 * ops}}
        journal.append("work", {"answer": {**multiplied, "uncounted": {}, "others": {"softmax": 6}}})
        journal.append("ops", {"samples": 128, "answer": described})
        journal.append("harm", {"samples": 128, "answer": [
            [name, scheme.to_json(), harm * factor]
            for name, harm in harms.items()
            for scheme, factor in ((PLAIN, 1.0), (DYNAMIC, 0.5), (REPAIRED, 0.2))
        ]})  # fmt: skip
        journal.append("cost", {"samples": 128, "answer": [
            [name, scheme.to_json(), ms]
            for name in names
            for scheme, ms in ((Scheme.fp32(), 0.2), (PLAIN, 0.05), (DYNAMIC, 0.07), (REPAIRED, 0.05))
        ]})  # fmt: skip
        best = None
        for number in range(trials):
            journal.append(
                "stage", {"name": "trial", "detail": f"trial {number}", "at": now + 60 * (number + 2)}
            )
            best = _trial(rng, number, names, harms, base)
            journal.append("trial", {"answer": best.to_json()})
        assert best is not None
        journal.append("result", _result(best, names, now + 60 * (trials + 2)))
    Ranges(dict.fromkeys(names, _stats(rng)), 128).save(folder / RANGES)
    return folder


def _run(at: float) -> dict[str, Any]:
    machine = {"cpu": "a CPU", "features": ["avx2"]}
    where = {"framework": "pytorch", "threads": 2, "weights": "pairs", "machine": machine}
    return {
        "at": at, "command": "octune tune conf.yaml", "folder": "here", "host": "another", "pid": 1,
        "octune": "0.1.0", "config": {}, "environment": where,
    }  # fmt: skip


def _trial(rng: Any, number: int, names: list[str], harms: dict[str, float], base: Any) -> Trial:
    worst = sorted(names, key=lambda name: -harms[name])[: number + 1]
    plan = Plan({name: Scheme.fp32() if name in worst else PLAIN for name in names})
    answers = base.copy()
    lost = rng.choice(base.size, size=base.size * max(4, 90 - 3 * number) // 2000, replace=False)
    answers[lost] = 0.0
    ms = 22.0 + 0.3 * number
    return Trial(
        plan, reason=f"{number + 1} ops in fp32",
        score=Score.from_items(answers, hits=answers, limits=(0.0, 1.0)),
        latency_ms=ms, speed=Speedup(80 / ms, 78 / ms, 82 / ms), size=120_000_000, seconds=55.0, samples=128,
        spread_ms=Spread(ms - 1, ms, ms + 2), fp32_spread_ms=Spread(78.0, 80.0, 85.0),
    )  # fmt: skip


def _result(best: Trial, names: list[str], at: float) -> dict[str, Any]:
    kept = [name for name in names if best.plan[name].is_float]
    return {
        "at": at, "met": True, "best": best.key, "batch": 1, "stopped_because": "a plan met the criterion",
        "ops": [], "notes": ["made up"], "seconds": 3000.0, "stages": {"baseline": 60.0, "trial": 2200.0},
        "environment": {}, "kept": dict.fromkeys(kept, "accuracy: 12% of the predicted harm of int8"),
    }  # fmt: skip


def _stats(rng: Any) -> TensorStats:
    observer = Observer()
    observer.update(rng.standard_t(3, size=(4000, 8)).astype(np.float32))
    stats = observer.stats()
    assert stats is not None
    return stats
