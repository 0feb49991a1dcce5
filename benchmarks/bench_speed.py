"""How speed is compared, whatever the framework: contenders are made one by one, then take turns.

    run = measure("bench_torch", "minilm", options)

The module of a framework has ``CONTENDERS`` in the order in which they are made, ``COLUMNS`` (their names in
the order of the table, the baseline first) and ``prepare(name, quick, threads)``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from bench_machine import reason
from bench_report import ModelRun
from bench_subject import Inputs

from octune.cost import Load, interleaved

__all__ = ["Built", "Contender", "build", "measure"]

ROUNDS, QUICK_ROUNDS, BURST = (5, 11), 2, 3
SECONDS = 45.0  # roughly how long one shape may take, within those rounds
# Idle threads spin for a while on the cores that the next contender needs: ONNX Runtime's for 40 ms after a
# call, PyTorch's for 10.
PAUSE = 0.06
COMPARED_BATCHES, COMPARED_SEED = 4, 3


@dataclass
class Built:
    """A contender that is ready: ``run(inputs)`` returns the model's logits. ``seconds`` is how long it took
    to make from the fp32 model.
    """

    run: Callable[[Inputs], Any]
    seconds: float = 0.0
    remarks: list[str] = field(default_factory=list)
    caveat: str = ""  # how it was made differently from the others


@dataclass(frozen=True)
class Contender:
    """What is compared, and how it is made. ``needs`` are the modules that it requires, ``install`` is the
    command that installs them.
    """

    name: str
    build: Callable[[Any], Built]
    exact: bool = False  # it computes in fp32: it has no error worth showing
    needs: tuple[str, ...] = ()
    install: str = ""

    def absent(self, skipped: Iterable[str]) -> str:
        """Why it does not take part, or an empty string."""
        if any(word.lower() in self.name.lower() for word in skipped):
            return "left out: --skip"
        if any(importlib.util.find_spec(module) is None for module in self.needs):
            return f"not installed: {self.install}"
        return ""


def build(
    contenders: Iterable[Contender], preparation: Any, run: ModelRun, options: argparse.Namespace
) -> dict[str, Built]:
    """Make the contenders of a run in turn, and note why some cannot be made."""
    made: dict[str, Built] = {}
    for contender in contenders:
        why = contender.absent(options.skip)
        if why:
            run.absent[contender.name] = why
            continue
        try:
            built = contender.build(preparation)
        except Exception as error:  # whatever goes wrong concerns this contender alone: the others go on
            run.failed[contender.name] = reason(error)
            continue
        made[contender.name] = built
        run.build_seconds[contender.name], run.remarks[contender.name] = (
            round(built.seconds, 1),
            built.remarks,
        )
        if built.caveat:
            run.caveats[contender.name] = built.caveat
    return {name: made[name] for name in run.contenders if name in made}


def measure(framework: str, name: str, options: argparse.Namespace) -> ModelRun:
    """Make every contender, compare what they answer, time them in turns."""
    module: Any = importlib.import_module(framework)
    preparation = module.prepare(name, options.quick, options.threads)
    subject = preparation.subject
    run = ModelRun(name, subject.title, module.COLUMNS[0], list(module.COLUMNS))
    contenders = build(module.CONTENDERS, preparation, run, options)
    exact = {contender.name for contender in module.CONTENDERS if contender.exact}
    batches = subject.batches(COMPARED_BATCHES, COMPARED_SEED)
    for contender in contenders:
        if contender not in exact and run.baseline in contenders:
            run.error[contender] = _relative_error(
                contenders[run.baseline].run, contenders[contender].run, batches
            )
    for shape in subject.shapes:
        calls = {key: partial(built.run, subject.inputs(shape)) for key, built in contenders.items()}
        rounds = QUICK_ROUNDS if options.quick else _rounds(calls.values())
        with Load(with_children=True) as others:
            times = interleaved(calls, warmup=2, iterations=rounds, pause=PAUSE, calls_per_turn=BURST)
        run.median_ms[shape] = {key: latency.median_ms for key, latency in times.items()}
        run.p90_ms[shape] = {key: latency.p90_ms for key, latency in times.items()}
        run.rounds[shape], run.neighbours[shape] = rounds, round(others.cores, 2)
    return run


def _rounds(calls: Iterable[Callable[[], Any]]) -> int:
    """As many rounds as fit the time, within limits."""
    for call in calls:
        call()
    begun = time.perf_counter()
    for call in calls:
        call()
    fewest, most = ROUNDS
    return max(fewest, min(most, int(SECONDS / (BURST + 1) / (time.perf_counter() - begun))))


def _relative_error(
    reference: Callable[[Inputs], Any], model: Callable[[Inputs], Any], batches: Sequence[Inputs]
) -> float:
    """How far the outputs are from fp32's, relative to their size."""
    wanted = np.concatenate([np.asarray(reference(batch)) for batch in batches])
    given = np.concatenate([np.asarray(model(batch)) for batch in batches])
    return float(np.linalg.norm(given - wanted) / np.linalg.norm(wanted))
