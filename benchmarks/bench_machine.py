"""Where a benchmark ran and how quiet it was there: numbers without that are rumours.

    quiet()                                         # before frameworks are imported
    where = describe(2, ("torch", "transformers"))  # plain data: CPU, versions, load
    with Neighbours() as others:
        ...
    others.cores                                    # how many cores other processes kept busy meanwhile

Load and neighbours are two questions: was it quiet before, and did it stay so?
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import logging
import os
import platform
import time
import warnings
from collections.abc import Iterable
from typing import Any

import psutil

import octune
from octune.machine import probe_machine

__all__ = ["BUSY_LOAD", "BUSY_NEIGHBOURS", "Neighbours", "describe", "quiet", "reason"]

BUSY_LOAD = 0.5
BUSY_NEIGHBOURS = 0.2


def quiet() -> None:
    """Silence what libraries say about themselves; what goes wrong still comes as an exception."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("torchao", "nncf"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def describe(threads: int, packages: Iterable[str]) -> dict[str, Any]:
    """The machine, the versions of the packages and the load average, as plain data."""
    machine = probe_machine()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": machine.cpu,
        "cores": machine.cores,
        "features": list(machine.features),
        "threads": threads,
        "python": platform.python_version(),
        "versions": {"octune": octune.__version__, **{name: _version(name) for name in (*packages, "numpy")}},
        "load": round(os.getloadavg()[0], 2),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def reason(error: BaseException) -> str:
    """The first line of an error, for a table."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200].rstrip(": ")


class Neighbours:
    """How many cores were busy with other processes while this was open.

    The load average cannot tell: it lags by a minute and counts the benchmark itself.
    """

    def __init__(self) -> None:
        self.cores = 0.0

    def __enter__(self) -> Neighbours:
        self._began, self._busy, self._own = time.perf_counter(), _busy(), _own()
        return self

    def __exit__(self, *exception: object) -> None:
        seconds = max(time.perf_counter() - self._began, 1e-9)
        self.cores = max(0.0, (_busy() - self._busy) - (_own() - self._own)) / seconds


def _busy() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _own() -> float:
    """Of this process and of all that it started, those that have ended included."""
    here = psutil.Process()
    times = here.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in here.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)
