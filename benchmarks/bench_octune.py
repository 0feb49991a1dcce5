"""What a benchmark asks of an Octune backend: calibrate it, and the plan with every op in int8.

    backend, ranges, plan = calibrated(TorchBackend(model, Settings(threads=2)), batches)
    model = backend.apply(plan, ranges)

All of it works with every backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from octune.backends.base import Backend
from octune.calibration import Ranges, collect
from octune.config import Config
from octune.plan import Plan
from octune.search import Space
from octune.search.options import legal_ops

__all__ = ["Calibrated", "calibrated", "observe"]

LOOKED_AT = 2  # batches


class Calibrated(NamedTuple):
    """A backend that has seen data, what it saw, and the plan with every op in int8."""

    backend: Backend
    ranges: Ranges
    plan: Plan

    @property
    def remarks(self) -> list[str]:
        """The plan in a few words."""
        counts = ", ".join(f"{count} {dtype}" for dtype, count in self.plan.counts().items())
        return [f"plan: {counts}", *self.backend.notes]


def calibrated(backend: Backend, batches: Sequence[Any], *, look: bool = False) -> Calibrated:
    """Calibrate a backend, and plan every op in int8: where a tuning run starts. Nothing is timed, so that
    every machine has the same plan.

    ``look`` chooses for every op the range that does the least harm to the model's output, on a few of the
    batches, without labels.
    """
    ranges = observe(backend, batches)
    ops = legal_ops(backend.ops(), Config().quantization, ranges)
    choices = {op.name: [scheme for scheme in op.schemes if not scheme.is_float] for op in ops}
    inputs = [backend.split(batch)[0] for batch in batches[:LOOKED_AT]]
    harm = backend.harm(choices, ranges, inputs) if look else {}
    return Calibrated(backend, ranges, Space.of(ops, harm).fastest())


def observe(backend: Backend, batches: Iterable[Any]) -> Ranges:
    """One streaming pass of the backend over the batches, as a tuning run does it."""
    samples, batches = 0, iter(batches)
    first = next(batches)
    backend.prepare(backend.split(first)[0])

    def counted() -> Iterable[Any]:
        nonlocal samples
        for batch in chain([first], batches):
            inputs, _ = backend.split(batch)
            samples += backend.batch_size(inputs)
            yield inputs

    ranges = collect(backend, counted(), 0)
    return Ranges(ranges, samples)
