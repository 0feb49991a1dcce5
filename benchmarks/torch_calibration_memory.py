"""Calibration takes the same memory for 4 batches and for 64: nothing of a batch is kept but ranges and histograms.

    python benchmarks/torch_calibration_memory.py            # BERT-base, batches of 8 x 128 tokens
    python benchmarks/torch_calibration_memory.py --quick    # two layers, fewer batches

Every number of batches runs in a fresh process, and is compared with one plain fp32 pass over a batch in that process: what
calibration takes beyond that is its own. The allocator is told to give memory back at once: otherwise the peak says more about what
malloc likes to keep (tens of megabytes, other ones in every run) than about what is held. Ends with 1 if memory grows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_machine import quiet
from rich.console import Console
from rich.table import Table

BATCHES, QUICK_BATCHES = (4, 16, 64), (2, 8, 16)
SHAPE = (8, 128)
TOLERANCE_MB = 4.0
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MB = 1024.0


def main() -> int:
    options = _options()
    if options.batches:
        print(json.dumps(measure(options.batches, options.quick, options.threads)))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 140)
    made = Table(title=f"memory of calibration, MB; batches of {SHAPE[0]} x {SHAPE[1]} tokens", title_justify="left", header_style="bold")
    for heading in ("batches", "model loaded", "one fp32 pass takes", "calibration takes"):
        made.add_column(heading, justify="right")
    found: list[float] = []
    for count in QUICK_BATCHES if options.quick else BATCHES:
        answer = _in_child(count, options)
        found.append(answer["calibration"])
        made.add_row(str(count), *(f"{answer[key]:.0f}" for key in ("model", "forward", "calibration")))
    console.print(made)
    growth = max(found) - found[0]
    grows = growth > TOLERANCE_MB
    console.print(f"from the fewest to the most batches: {found[-1] - found[0]:+.0f} MB. {'IT GROWS' if grows else 'It does not grow.'}")
    return 1 if grows else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Peak memory of calibrating BERT-base on more and more batches.")
    parser.add_argument("--quick", action="store_true", help="two layers, fewer batches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_child(count: int, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--batches", str(count), "--threads", str(options.threads), *["--quick"] * options.quick]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **ALLOCATOR})
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def measure(count: int, quick_run: bool, threads: int) -> dict[str, float]:
    """Megabytes of the loaded model, and what a plain pass and calibration take on top of it."""
    quiet()
    import torch
    from bench_contenders import observe
    from bench_models import bert

    from octune.backends.base import Settings
    from octune.backends.torch import TorchBackend

    backend = TorchBackend(bert(num_hidden_layers=2 if quick_run else 12), Settings(threads=threads))
    generator = torch.Generator().manual_seed(0)

    def batches(number: int) -> Iterator[Any]:
        for _ in range(number):
            ids = torch.randint(1000, 30000, SHAPE, generator=generator)
            yield backend.split({"input_ids": ids, "attention_mask": torch.ones_like(ids)})[0]

    model = _reset_peak()
    baseline = backend.baseline
    for call in batches(2):
        backend.run(baseline, call)
    forward = _peak() - model
    _reset_peak()
    observe(backend, batches(count))
    return {"model": model, "forward": forward, "calibration": _peak() - model}


def _reset_peak() -> float:
    """Forget the peak, where the kernel allows it; the memory that is in use now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> float:
    try:
        return _status("VmHWM")
    except OSError:  # no /proc: the peak of the whole life of the process, which can only hide growth below that of loading
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / MB


if __name__ == "__main__":
    sys.exit(main())
