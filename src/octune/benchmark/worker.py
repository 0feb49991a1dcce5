"""The process that holds one model: it opens it, makes inputs for it, and times calls when it is told to.

It is started by :class:`octune.benchmark.instance.Instance`, pinned to its cores. One JSON object on each
line of standard input is a request; each is answered by one on standard output.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from octune.benchmark.inputs import DataInputs, MadeInputs
from octune.cost.latency import LONG
from octune.errors import OctuneError, summary
from octune.opening import Opened, import_framework, open_model

__all__ = ["Worker", "serve"]

MB = 1e6


class Worker:
    """One model, and the inputs that it is timed on."""

    def __init__(self, source: str, threads: int, data: Mapping[str, Any] | None, trust: bool) -> None:
        self._source, self._threads, self._data, self._trust = source, threads, data, trust
        self._model: Opened | None = None
        self._inputs: Any = None
        self._imported, self._long = 0.0, False

    def open(self) -> dict[str, Any]:
        """Open the model. What importing its framework takes is not counted as its memory."""
        import_framework(self._source)
        self._imported = _memory("VmRSS")
        with suppress(OSError):  # not everywhere: the peak then is the process's own
            Path("/proc/self/clear_refs").write_text("5")
        begun = time.perf_counter()
        with _warnings() as warnings:
            model = self._model = open_model(self._source, threads=self._threads, trust=self._trust)
        self._makes = MadeInputs(model) if self._data is None else DataInputs(model, self._data)
        return {
            "name": model.name,
            "kind": model.kind,
            "size": model.size,
            "coverage": None if model.ops is None else str(model.ops),
            "seconds": time.perf_counter() - begun,
            "cores": _affinity(),
            "warnings": warnings,
        }

    def shape(self, batch: int, sequence: int | None, warmup: int, patient: bool = False) -> dict[str, Any]:
        """Inputs of this size, and calls that are not timed: as many as were asked for if ``patient``, else
        fewer if they take long.
        """
        model = self._opened()
        self._inputs = self._makes(batch, sequence)
        self._long = False
        begun = time.perf_counter()
        calls = 0
        while calls < max(1, warmup) and (patient or not calls or time.perf_counter() - begun < LONG):
            model.run(self._inputs)
            calls += 1
        return {"warmup": calls, "sequence": self._makes.length(sequence)}

    def turn(self, at: float, seconds: float = 0.0, calls: int = 1) -> dict[str, Any]:
        """Milliseconds of calls, beginning at a time that all instances are told: ``calls``, or more until
        ``seconds`` are over. One that is not timed comes before them, unless calls take so long that what
        others left in the caches does not matter.
        """
        model, inputs = self._opened(), self._inputs
        time.sleep(max(0.0, at - time.monotonic()))
        if not self._long:
            model.run(inputs)
        times: list[float] = []
        begun = now = time.perf_counter()
        while len(times) < calls or now - begun < seconds:
            start = now
            model.run(inputs)
            now = time.perf_counter()
            times.append((now - start) * 1e3)
        self._long = times[-1] > LONG * 1e3
        return {"ms": times, "seconds": now - begun, "memory": self._peak()}

    def _peak(self) -> float:
        return max(0.0, _memory("VmHWM") - self._imported)

    def _opened(self) -> Opened:
        if self._model is None:
            raise ValueError("open comes first")
        return self._model


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What Octune warns of, for the process that compares: nobody sees what this one prints."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("octune")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


def _affinity() -> list[int]:
    """The cores that any thread of this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return sorted(set[int]().union(*map(os.sched_getaffinity, threads)))


def _memory(what: str) -> float:
    """Megabytes of this process: resident now (``VmRSS``), or the most so far (``VmHWM``)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    found = dict(line.split(":", 1) for line in lines)
    return int(found[what].split()[0]) * 1024 / MB


def serve() -> None:
    """Answer until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    worker = Worker(**json.loads(sys.argv[2]))
    deeds: dict[str, Callable[..., dict[str, Any]]] = {
        "open": worker.open,
        "shape": worker.shape,
        "turn": worker.turn,
    }
    for request in _requests():
        try:
            answer = deeds[request.pop("do")](**request)
        except Exception as error:
            ours = isinstance(error, OctuneError)
            text = str(error) if ours else f"{type(error).__name__}: {summary(error)}"
            answer = {"error": text, "kind": type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)
