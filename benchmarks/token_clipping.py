"""Would ranges that are clipped by token be better than those that there are?

    python benchmarks/token_clipping.py                                  # the two stress cases
    python benchmarks/token_clipping.py --models models --data data     # and fine-tuned BERTs

Outlier-aware clipping takes the largest and the least value of every token, and clips at a quantile of these:
then a few tokens whose values are far out do not take the range of all others. Here such ranges, at several
quantiles, stand beside the three methods of the default search: for the harm of every op by itself, for that
of the plan in which each op has its least harmful range, and for the score of that plan. MODELS and DATA are
those of zoo.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from bench_machine import quiet
from search.cases import CASES

from octune.backends import Settings, backend_for
from octune.calibration import Ranges, collect
from octune.data import as_batches
from octune.evaluation import get_metric
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.pairing import Pairing
from octune.harm import output_change
from octune.plan import Plan, RangeMethod, Scheme
from octune.sources import open_model
from octune.tasks import load_task
from zoo import Missing, Place

KNOWN: tuple[RangeMethod, ...] = ("minmax", "mse", "percentile")
QUANTILES = (0.99, 0.95, 0.9, 0.8, 0.5)
CALIBRATION, PROBED = 64, 8  # samples for ranges, and for harms
SLOT: RangeMethod = "kl"  # a method of a range that the search does not take: token ranges stand in for it


@dataclass(frozen=True)
class Subject:
    name: str
    model: Any
    calibration: Any
    evaluation: Any
    metric: Any
    samples: int | None = None


def subjects(options: argparse.Namespace) -> Iterator[Subject]:
    for name, make in CASES.items():
        case = make(1)
        yield Subject(f"stress: {name}", case.model, case.calibration, case.evaluation, "accuracy")
    if options.models is None:
        return
    place = Place(options.models, options.data)
    for task in options.tasks:
        try:
            folder = str(place.model(task))
            data = load_task(task, place.folder(task), tokenizer=folder)
        except Missing as missing:
            print(f"{task} is left out: {missing}")
            continue
        model, samples = open_model(folder, None), options.questions if task == "squad" else None
        yield Subject(task, model, data.calibration, data.evaluation, data.metric, samples)


class Rows:
    """The largest and the least value of every token that an op has read."""

    def __init__(self) -> None:
        self.ends: dict[str, list[Any]] = {}

    def __call__(self, op: str, array: Any, *, shape: Any, channel_axis: int = -1) -> None:
        if array is not None and array.ndim > 1:
            tokens = np.moveaxis(array, channel_axis, -1).reshape(-1, array.shape[channel_axis])
            self.ends.setdefault(op, []).append(np.stack([tokens.min(axis=1), tokens.max(axis=1)]))

    def clipped(self, quantile: float) -> dict[str, tuple[float, float]]:
        found = {}
        for op, parts in self.ends.items():
            lows, highs = np.concatenate(parts, axis=1)
            low, high = np.quantile(lows, 1 - quantile), np.quantile(highs, quantile)
            found[op] = (min(float(low), 0.0), max(float(high), 0.0))
        return found


def measure(subject: Subject) -> tuple[Any, ...]:
    backend = backend_for(subject.model, Settings())
    calls = [backend.split(batch)[0] for batch in islice(iter(subject.calibration), CALIBRATION)]
    calls = calls[: max(1, CALIBRATION // max(1, calls[0].batch_size))]
    backend.prepare(calls[0])
    ranges, rows = collect(backend, calls, CALIBRATION), Rows()
    backend.observe(calls, rows)
    few = [call.resized(min(PROBED, call.batch_size)) for call in calls[: max(1, PROBED // 8)]]
    static = [op for op in backend.ops() if op.name in rows.ends and Scheme.int8() in op.schemes]
    harms: dict[str, dict[Any, float]] = {op.name: {} for op in static}

    def told(methods: tuple[RangeMethod, ...], key: Any = None, over: Ranges = ranges) -> None:
        schemes = [Scheme.int8(range_method=method) for method in methods]
        found = backend.harm({op.name: schemes for op in static}, over, few)
        for (op, scheme), harm in found.items():
            harms[op][key or scheme.range_method] = harm

    told(KNOWN)
    clipped = {quantile: rows.clipped(quantile) for quantile in QUANTILES}
    for quantile, ends in clipped.items():
        for op, range_ in ends.items():
            ranges[op].chosen[SLOT] = range_
        told((SLOT,), quantile)
    best = {op: min(KNOWN, key=lambda method: known[method]) for op, known in harms.items()}
    both = {op: min(known, key=lambda key: known[key]) for op, known in harms.items()}
    for op, key in both.items():
        if key not in KNOWN:
            ranges[op].chosen[SLOT] = clipped[key][op]
    plans = [
        Plan({op: Scheme.int8(range_method=key if key in KNOWN else SLOT) for op, key in chosen.items()})
        for chosen in (best, both)
    ]
    wanted = backend.outputs(Plan(), ranges, few)
    whole = [output_change(wanted, backend.outputs(plan, ranges, few)) for plan in plans]
    metric = get_metric(subject.metric) if isinstance(subject.metric, str) else subject.metric
    data = as_batches(subject.evaluation, role="evaluation")
    evaluator = MetricEvaluator(backend, data, metric, samples=subject.samples)
    fp32, pairing = evaluator.baseline(backend.fp32_model())
    scores = [fp32, *(evaluator(backend.apply(plan, ranges), pairing or Pairing()) for plan in plans)]
    better = sum(harms[op][both[op]] < 0.9 * harms[op][best[op]] for op in harms)
    summed = [sum(harms[op][chosen[op]] for op in harms) for chosen in (best, both)]
    return len(static), better, *summed, *whole, *(score.value for score in scores)


def main() -> int:
    options = _options()
    quiet()
    print(
        "| model | ops | by token a tenth better | harms added up, today | with token ranges "
        "| harm of the plan, today | with token ranges | score: fp32 | today | with token ranges |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for subject in subjects(options):
        ops, better, *numbers = measure(subject)
        harms, scores = numbers[:4], numbers[4:]
        told = [*(f"{harm:.2e}" for harm in harms), *(f"{score:.4f}" for score in scores)]
        print(f"| {subject.name} | {ops} | {better} | {' | '.join(told)} |", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, help="Hugging Face folders whose names end in a task")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="*", default=["sst2", "mrpc", "stsb", "squad"])
    parser.add_argument("--questions", type=int, default=300, help="how many of SQuAD's are scored")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
