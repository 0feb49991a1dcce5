"""What every op costs in every scheme, measured on this machine, and what that says of a whole plan.

milliseconds = measure_ops(backend, ops, ranges)
milliseconds["layer.query", Scheme.int8()]
ceiling(plan, milliseconds)         # no plan is faster than its ops allow
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from octune.calibration import Ranges
from octune.cost.cache import CostCache
from octune.cost.load import Load
from octune.plan import Op, Plan, Scheme
from octune.repair import repairs_of

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["alike", "ceiling", "measure_ops"]

ROUNDS, DOUBTS = 3, 3
PAUSE = 0.05
LEAST, MOST, SECONDS = 5, 30, 0.01  # runs of a kernel in one round
TOGETHER = 8  # ops whose kernels are made and timed together: some hold threads and memory while they live
DOUBTFUL_HOURS = 1
SLACK = 3.0  # what is folded into an int8 op (a batch norm, an activation) is saved with it


class OpKey(NamedTuple):
    """Ops that take the same time."""

    kind: str
    parameters: int
    signature: str
    shape: tuple[int, ...]


class KernelKey(NamedTuple):
    """Such an op in schemes that take the same time."""

    op: OpKey
    kernel: tuple[Any, ...]


Jobs = Mapping[KernelKey, tuple[Op, Scheme]]


def measure_ops(backend: Backend, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
    """Milliseconds by (op, scheme). Equal ops on equal inputs are measured once; how a range was chosen costs
    nothing.

    All kernels are timed in rounds and the least counts: what disturbs a timing lasts, and would hit all
    timings of one kernel in a row. What an earlier run timed under the same conditions is not timed again;
    what was surprising, or timed on a busy machine, is believed for an hour.
    """
    jobs: dict[KernelKey, tuple[Op, Scheme]] = {}
    keys: dict[tuple[str, Scheme], KernelKey] = {}
    for op in ops:
        if (same := _like(op, ranges)) is None:
            continue
        for scheme in op.schemes:
            key = KernelKey(same, _kernel(scheme))
            jobs.setdefault(key, (op, scheme))
            keys[op.name, scheme] = key
    cache = CostCache.of(backend)
    kept = {key: ms for key in jobs if (ms := cache.get(key)) is not None}
    # All kernels of an op or none: timings of two days are not compared with each other.
    stale = {key.op for key in jobs if key not in kept}
    new = {key: job for key, job in jobs.items() if key.op in stale}
    times, disturbed = _measure(backend, new, ranges)
    doubtful = _surprising(times, new) | disturbed
    cache.add({key: ms for key, ms in times.items() if key.op not in doubtful})
    cache.add({key: ms for key, ms in times.items() if key.op in doubtful}, DOUBTFUL_HOURS)
    times = {**kept, **times}
    return {place: times[key] for place, key in keys.items()}


def alike(ops: Sequence[Op], ranges: Ranges) -> list[list[Op]]:
    """The ops that are timed, in groups of those that take the same time: of each group, only one is."""
    groups: dict[OpKey, list[Op]] = {}
    for op in ops:
        if (same := _like(op, ranges)) is not None:
            groups.setdefault(same, []).append(op)
    return list(groups.values())


def _like(op: Op, ranges: Ranges) -> OpKey | None:
    """What an op has in common with all that take the same time; None if there is nothing to time."""
    if len(op.schemes) == 1 or op.name not in ranges:
        return None
    return OpKey(op.kind, op.parameters, op.signature, ranges[op.name].shape)


def ceiling(plan: Plan, milliseconds: Mapping[tuple[str, Scheme], float]) -> float:
    """How many times faster than fp32 a plan can run op by op, if all else in the model takes no time;
    infinite without the costs.
    """
    floats = {name: ms for (name, scheme), ms in milliseconds.items() if scheme.dtype == "fp32"}
    chosen = {name: scheme for name, scheme in plan.items() if scheme.dtype != "fp32"}
    if not all((name, scheme) in milliseconds for name, scheme in chosen.items()):
        return math.inf
    least = sum(
        min(ms, milliseconds[name, chosen[name]]) if name in chosen else ms for name, ms in floats.items()
    )
    return SLACK * sum(floats.values()) / least if least else math.inf


def _measure(backend: Backend, jobs: Jobs, ranges: Ranges) -> tuple[dict[KernelKey, float], set[OpKey]]:
    """Milliseconds of all kernels, and the ops that were timed on a busy machine."""
    times: dict[KernelKey, float] = {}
    disturbed: set[OpKey] = set()
    ops = list(dict.fromkeys(key.op for key in jobs))
    for start in range(0, len(ops), TOGETHER):
        some = set(ops[start : start + TOGETHER])
        found, busy = _in_rounds({key: job for key, job in jobs.items() if key.op in some}, backend, ranges)
        times |= found
        disturbed |= some if busy else set()
    return times, disturbed


def _in_rounds(jobs: Jobs, backend: Backend, ranges: Ranges) -> tuple[dict[KernelKey, float], bool]:
    """Milliseconds of some kernels, and whether others kept the machine busy to the end."""
    calls = {key: backend.alone(*job, ranges) for key, job in jobs.items()}
    for call in calls.values():
        call()
    times = dict.fromkeys(jobs, math.inf)
    for _ in range(2):
        with Load() as load:
            for _ in range(ROUNDS):
                _once_more(calls, times)
        if not load.busy:
            break
    for _ in range(DOUBTS):
        # That int8 is slower than fp32 is surprising, so it must show again a moment later.
        doubtful = _surprising(times, jobs)
        time.sleep(PAUSE if doubtful else 0.0)
        _once_more({key: call for key, call in calls.items() if key.op in doubtful}, times)
    return times, load.busy


def _once_more(calls: Mapping[KernelKey, Callable[[], object]], times: dict[KernelKey, float]) -> None:
    for key, call in calls.items():
        times[key] = min(times[key], _least(call))


def _least(call: Callable[[], object]) -> float:
    """Milliseconds of the fastest of a few runs: what disturbs a timing only ever makes it longer."""
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < LEAST or (len(times) < MOST and time.perf_counter() - begun < SECONDS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def _surprising(times: Mapping[KernelKey, float], jobs: Jobs) -> set[OpKey]:
    """The ops whose int8 kernels are all slower than fp32, as measured so far."""
    floats = {key.op: times[key] for key, (_, scheme) in jobs.items() if scheme.dtype == "fp32"}
    quantized: dict[OpKey, float] = {}
    for key, (_, scheme) in jobs.items():
        if not scheme.is_float:
            quantized[key.op] = min(times[key], quantized.get(key.op, math.inf))
    return {op for op, fastest in quantized.items() if fastest > floats.get(op, math.inf)}


def _kernel(scheme: Scheme) -> tuple[Any, ...]:
    # Weights and biases that are other numbers take as long.
    repairs = tuple(repair.name for repair in repairs_of(scheme) if repair.changes_kernel)
    return (scheme.dtype, scheme.mode, scheme.granularity, repairs)
