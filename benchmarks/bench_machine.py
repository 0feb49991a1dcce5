"""Where a benchmark ran, and how quiet the machine was: numbers mean little without that.

    quiet()                                         # before frameworks are imported
    where = describe(2, ("torch", "transformers"))  # plain data: CPU, versions, load of other processes
    with Load(with_children=True) as others:
        ...
    others.cores                                    # how many cores other processes kept busy meanwhile

Both before and during a benchmark, octune.cost.Load measures what other processes take. The benchmark's own
work is left out; a load average would count it.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import logging
import os
import platform
import time
import warnings
from collections.abc import Iterable
from typing import Any

from rich.console import Console

import octune
from octune.cost import Load
from octune.machine import probe_machine

__all__ = ["BUSY_NEIGHBOURS", "describe", "footer", "quiet", "reason"]

BUSY_NEIGHBOURS = 0.2  # cores


def quiet() -> None:
    """Silence what libraries say about themselves; errors are still raised."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("torchao", "nncf"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def describe(threads: int, packages: Iterable[str]) -> dict[str, Any]:
    """The machine, the versions of the packages and how many cores other processes keep busy, as plain
    data.
    """
    machine = probe_machine()
    with Load(with_children=True) as others:
        time.sleep(1.0)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": machine.cpu,
        "cores": machine.cores,
        "generation": machine.generation,
        "features": list(machine.features),
        "threads": threads,
        "python": platform.python_version(),
        "versions": {"octune": octune.__version__, **{name: _version(name) for name in (*packages, "numpy")}},
        "load": round(others.cores, 2),
    }


def footer(console: Console, threads: int, others: Load) -> None:
    """Says where a benchmark of PyTorch ran, with a warning if others kept the machine busy."""
    where = describe(threads, ("torch",))
    said = f"{where['cpu']}, {threads} threads, torch {where['versions']['torch']}"
    console.print(said, style="dim", highlight=False)
    if others.cores > BUSY_NEIGHBOURS:
        said = f"warning: other processes kept {others.cores:.1f} cores busy meanwhile"
        console.print(said, style="yellow", highlight=False)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def reason(error: BaseException) -> str:
    """The first line of an error, for a table."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200].rstrip(": ")
