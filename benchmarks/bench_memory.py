"""How much memory calibration takes, for more and more data, each amount measured in a process of its own.

    sys.exit(main("BERT-base", open_backend, Amounts((8, 128), (4, 16, 64), (2, 8, 16))))

What calibration takes is compared with plain fp32 passes in the same process: everything beyond that is its
own. The allocator is told to return memory at once: otherwise the peak says more about what malloc keeps
(tens of megabytes, different in every run) than about what is in use.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_machine import quiet
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["Amounts", "main"]

ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MB = 1024.0


@dataclass(frozen=True)
class Amounts:
    """How much data: batches of ``shape``, in these numbers. Memory may not grow by more than ``tolerance``
    MB, nor exceed ``limit``.
    """

    shape: tuple[int, int]
    batches: tuple[int, ...]
    quick: tuple[int, ...]
    tolerance: float
    limit: float | None = None


def main(
    title: str,
    open_backend: Callable[[bool, int], Backend],
    draw: Callable[[tuple[int, int], int], Any],
    amounts: Amounts,
) -> int:
    """The command line: a table, and exit code 1 if calibration takes more than it may. ``open_backend(quick,
    threads)`` is called in each child.
    """
    options = _options(title)
    if options.batches:
        quiet()
        print(
            json.dumps(
                _measure(open_backend(options.quick, options.threads), draw, amounts.shape, options.batches)
            )
        )
        return 0
    rows, tokens = amounts.shape
    made = Table(
        title=f"memory of calibrating {title}, MB; batches of {rows} x {tokens} tokens",
        title_justify="left",
        header_style="bold",
    )
    for heading in ("batches", "samples", "model loaded", "plain fp32 takes", "calibration takes"):
        made.add_column(heading, justify="right")
    found: list[float] = []
    for count in amounts.quick if options.quick else amounts.batches:
        answer = _in_child("--batches", str(count))
        found.append(answer["calibration"])
        made.add_row(
            str(count),
            str(count * rows),
            *(f"{answer[key]:.0f}" for key in ("model", "forward", "calibration")),
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(made)
    grows = max(found) - found[0] > amounts.tolerance
    console.print(
        f"from the fewest to the most batches: {found[-1] - found[0]:+.0f} MB. "
        f"{'IT GROWS' if grows else 'It does not grow.'}"
    )
    exceeds = amounts.limit is not None and max(found) > amounts.limit
    if amounts.limit is not None:
        console.print(
            f"at most {max(found):.0f} MB over the model, {'MORE THAN' if exceeds else 'within'} the limit "
            f"of {amounts.limit:.0f} MB"
        )
    return 1 if grows or exceeds else 0


def _options(title: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"Peak memory of calibrating {title} on more and more batches."
    )
    parser.add_argument("--quick", action="store_true", help="two layers, fewer batches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_child(*arguments: str) -> dict[str, float]:
    """What the running script prints as its last line when it is called with these arguments too."""
    command = [sys.executable, *sys.argv, *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **ALLOCATOR}
    )
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _measure(
    backend: Backend, draw: Callable[[tuple[int, int], int], Any], shape: tuple[int, int], count: int
) -> dict[str, float]:
    """Megabytes of the loaded model, and what plain passes and calibration take on top of it."""
    from bench_octune import observe

    model = _reset_peak()
    baseline = backend.fp32_model()
    for seed in range(2):
        backend.run(baseline, backend.split(draw(shape, seed))[0])
    forward = _peak() - model
    _reset_peak()
    observe(backend, (draw(shape, seed) for seed in range(count)))
    return {"model": model, "forward": forward, "calibration": _peak() - model}


def _reset_peak() -> float:
    """Resets the peak, where the kernel allows it; returns the memory that is in use now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> float:
    """The peak in megabytes since it was last reset."""
    try:
        return _status("VmHWM")
    # No /proc: the peak of the whole life of the process, which can only hide growth below that of loading.
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / MB
