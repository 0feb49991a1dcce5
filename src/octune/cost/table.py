"""What every op costs in every scheme, measured on this machine.

milliseconds = measure_ops(backend, ops, ranges)
milliseconds["layer.query", Scheme.int8()]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.plan import Op, Scheme
from octune.repair import BIAS

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["measure_ops"]

DOUBTS = 3
PAUSE = 0.05


def measure_ops(backend: Backend, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
    """Milliseconds by (op, scheme). Equal ops on equal inputs are measured once; how a range was chosen costs nothing."""
    known: dict[tuple[Any, ...], dict[Scheme, float]] = {}
    values: dict[tuple[str, Scheme], float] = {}
    for op in ops:
        if len(op.schemes) == 1 or op.name not in ranges:
            continue
        kernels = {_kernel(scheme): scheme for scheme in op.schemes}
        key = (op.kind, op.parameters, op.signature, ranges[op.name].shape, *kernels)
        if key not in known:
            known[key] = _measure(backend, op, tuple(kernels.values()), ranges)
        times = {_kernel(scheme): milliseconds for scheme, milliseconds in known[key].items()}
        values.update({(op.name, scheme): times[_kernel(scheme)] for scheme in op.schemes})
    return values


def _kernel(scheme: Scheme) -> tuple[Any, ...]:
    # A corrected bias is added like any other.
    return scheme.dtype, scheme.mode, scheme.granularity, tuple(repair for repair in scheme.repairs if repair != BIAS)


def _measure(backend: Backend, op: Op, schemes: tuple[Scheme, ...], ranges: Ranges) -> dict[Scheme, float]:
    """The least of a few timings. That int8 is slower than fp32 is surprising, so it must show again a moment later."""
    times = {scheme: backend.measure(op, scheme, ranges) for scheme in schemes}
    for _ in range(DOUBTS):
        quantized = [ms for scheme, ms in times.items() if not scheme.is_float]
        floats = [ms for scheme, ms in times.items() if scheme.dtype == "fp32"]
        if not quantized or not floats or min(quantized) <= min(floats):
            break
        time.sleep(PAUSE)
        times = {scheme: min(ms, backend.measure(op, scheme, ranges)) for scheme, ms in times.items()}
    return times
