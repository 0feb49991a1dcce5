"""What every op costs in every scheme, measured on this machine.

milliseconds = measure_ops(backend, ops, ranges)
milliseconds["layer.query", Scheme.int8()]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.cost.cache import CostCache
from octune.plan import Op, Scheme
from octune.repair import BIAS

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["measure_ops"]

ROUNDS, DOUBTS = 3, 3
PAUSE = 0.05
LEAST, MOST, SECONDS = 5, 30, 0.01  # runs of a kernel in one round
TOGETHER = 8  # ops whose kernels are made and timed together: some hold threads and memory while they live
SURPRISE_HOURS = 1
Key = tuple[Any, ...]


def measure_ops(backend: Backend, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
    """Milliseconds by (op, scheme). Equal ops on equal inputs are measured once; how a range was chosen costs nothing.

    All kernels are timed in rounds and the least counts: what disturbs a timing lasts, and would hit all timings of one kernel in a row.
    What an earlier run timed under the same conditions is not timed again; what was surprising is believed for an hour.
    """
    jobs: dict[Key, tuple[Op, Scheme]] = {}
    keys: dict[tuple[str, Scheme], Key] = {}
    for op in ops:
        if len(op.schemes) == 1 or op.name not in ranges:
            continue
        for scheme in op.schemes:
            key = (op.kind, op.parameters, op.signature, ranges[op.name].shape, *_kernel(scheme))
            jobs.setdefault(key, (op, scheme))
            keys[op.name, scheme] = key
    cache = CostCache.of(backend)
    kept = {key: ms for key in jobs if (ms := cache.get(key)) is not None}
    # All kernels of an op or none: timings of two days are not compared with each other.
    stale = {key[:_OP] for key in jobs if key not in kept}
    new = {key: job for key, job in jobs.items() if key[:_OP] in stale}
    times = _measure(backend, new, ranges)
    surprising = _surprising(times, new)
    cache.add({key: ms for key, ms in times.items() if key[:_OP] not in surprising})
    cache.add({key: ms for key, ms in times.items() if key[:_OP] in surprising}, SURPRISE_HOURS)
    times = {**kept, **times}
    return {place: times[key] for place, key in keys.items()}


def _measure(backend: Backend, jobs: Mapping[Key, tuple[Op, Scheme]], ranges: Ranges) -> dict[Key, float]:
    times: dict[Key, float] = {}
    ops = list(dict.fromkeys(key[:_OP] for key in jobs))
    for start in range(0, len(ops), TOGETHER):
        some = set(ops[start : start + TOGETHER])
        times |= _in_rounds({key: job for key, job in jobs.items() if key[:_OP] in some}, backend, ranges)
    return times


def _in_rounds(jobs: Mapping[Key, tuple[Op, Scheme]], backend: Backend, ranges: Ranges) -> dict[Key, float]:
    calls = {key: backend.alone(*job, ranges) for key, job in jobs.items()}
    for call in calls.values():
        call()
    times = dict.fromkeys(jobs, math.inf)
    wanted = list(jobs)
    for turn in range(ROUNDS + DOUBTS):
        if turn >= ROUNDS:
            # That int8 is slower than fp32 is surprising, so it must show again a moment later.
            wanted = [key for key in jobs if key[:_OP] in _surprising(times, jobs)]
            time.sleep(PAUSE if wanted else 0.0)
        for key in wanted:
            times[key] = min(times[key], _least(calls[key]))
    return times


def _least(call: Callable[[], object]) -> float:
    """Milliseconds of the fastest of a few runs: what disturbs a timing only ever makes it longer."""
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < LEAST or (len(times) < MOST and time.perf_counter() - begun < SECONDS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


_OP = 4  # so many parts of a key say which op it is, the others which kernel


def _surprising(times: Mapping[Key, float], jobs: Mapping[Key, tuple[Op, Scheme]]) -> set[Key]:
    """The ops whose int8 kernels are all slower than fp32, as measured so far."""
    floats = {key[:_OP]: times[key] for key, (_, scheme) in jobs.items() if scheme.dtype == "fp32"}
    quantized: dict[Key, float] = {}
    for key, (_, scheme) in jobs.items():
        if not scheme.is_float:
            quantized[key[:_OP]] = min(times[key], quantized.get(key[:_OP], math.inf))
    return {op for op, fastest in quantized.items() if fastest > floats.get(op, math.inf)}


def _kernel(scheme: Scheme) -> tuple[Any, ...]:
    # A corrected bias is added like any other.
    return scheme.dtype, scheme.mode, scheme.granularity, tuple(repair for repair in scheme.repairs if repair != BIAS)
