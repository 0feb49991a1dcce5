"""Timing that survives a busy machine: the candidates take turns, and the median counts.

times = interleaved({"fp32": run_fp32, "int8": run_int8})
times["fp32"].median_ms / times["int8"].median_ms
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

__all__ = ["Latency", "interleaved"]

LONG = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one call: the median, and what nine out of ten calls stay under."""

    median_ms: float
    p90_ms: float
    runs: int


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    warmup: int = 2,
    iterations: int | None = None,
    seconds: float = 2.0,
    pause: float = 0.0,
    burst: int = 0,
    warm: Collection[str] = (),
) -> dict[str, Latency]:
    """Time the candidates in turns: a slow moment of the machine hits all of them.

    ``iterations`` fixes the number of rounds; otherwise rounds go on for about ``seconds``, at least 3 and at most 50, and a warm-up
    ends when it has taken long. Those that are ``warm`` already get none.
    ``pause`` seconds before every turn let the threads of the one before come to rest: some runtimes' spin for a while.
    A turn is one timed call; with ``burst`` it is that many, behind one that is not timed, as for a model that serves alone.
    """
    for name, call in candidates.items():
        start = time.perf_counter()
        for _ in range(0 if name in warm else max(1, warmup)):
            call()
            if iterations is None and time.perf_counter() - start > LONG:
                break
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begun = time.perf_counter()
    rounds = 0
    while rounds < (iterations or 3) or (iterations is None and rounds < 50 and time.perf_counter() - begun < seconds):
        for name, call in candidates.items():
            time.sleep(pause)
            if burst:
                call()
            for _ in range(max(1, burst)):
                start = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - start) * 1e3)
        rounds += 1
    return {name: _summary(values) for name, values in times.items()}


def _summary(values: list[float]) -> Latency:
    ordered = sorted(values)
    return Latency(statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], len(ordered))
