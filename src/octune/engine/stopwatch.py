"""How fast models are, each in turns with one fp32 model that no evaluation code has seen.

stopwatch = Stopwatch(backend, Timing(), stop)
stopwatch.example = inputs                  # without one there is nothing to time
stopwatch.speed(model)                      # -> Timed, or None
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from octune.backends.base import Backend
from octune.cost.latency import FP32, Latency, Mix, Speedup, Timed, Timing, compare, interleaved
from octune.cost.load import Patience
from octune.cost.table import ceiling
from octune.engine.stop import Stop
from octune.plan import Plan, Scheme

__all__ = ["Size", "Stopwatch"]


@dataclass(frozen=True)
class Size:
    """Inputs of a size that models should be fast at, and how much their milliseconds count."""

    label: str
    inputs: Any
    weight: float


class Stopwatch:
    """Times models of one backend on one example, or on inputs of several ``sizes``."""

    def __init__(
        self,
        backend: Backend,
        timing: Timing,
        stop: Stop,
        example: Any = None,
        patience: Patience | None = None,
        sizes: Sequence[Size] = (),
    ) -> None:
        self.example, self.sizes = example, tuple(sizes)
        # milliseconds of every op in every scheme by itself, once they are known
        self.costs: Mapping[tuple[str, Scheme], float] = {}
        self.busiest = 0.0  # the largest share of the CPU that other processes had while a speed was measured
        self.timing, self.stop = timing, stop
        self._backend = backend
        self._patience = patience or Patience()

    @cached_property
    def fp32_model(self) -> Any:
        """The model that others take turns with; no evaluation code has seen it."""
        return self._backend.fp32_model()

    @property
    def batch(self) -> int | None:
        """How many samples the example holds."""
        return None if self.example is None else self._backend.batch_size(self.example)

    def fp32(self) -> Latency | None:
        """One look: what counts is how fp32 does in turns with the others, later."""
        if self.example is None:
            return None
        return interleaved({"fp32": self._call(self.fp32_model)}, iterations=1, already_warm=("fp32",))[
            "fp32"
        ]

    def speed(self, model: Any, rival: Speedup = FP32, ceiling: float = math.inf) -> Timed | None:
        """How many times faster than fp32 a model is, and milliseconds of both."""
        if self.example is None:
            return None
        if self.stop.left is not None:
            self._patience.seconds = min(self._patience.seconds, self.stop.left)
        already_warm = "fp32_model" in self.__dict__
        calls = self._call(self.fp32_model), self._call(model)
        timed = compare(
            *calls,
            self.timing,
            rival=rival,
            ceiling=ceiling,
            patience=self._patience,
            already_warm=already_warm,
        )
        self.busiest = max(self.busiest, timed.speed.load)
        if self.sizes:
            pairs = zip(*(call.medians_ms for call in calls if isinstance(call, Mix)), strict=True)
            timed = replace(timed, sizes=tuple((slow, fast) for slow, fast in pairs))
        return timed

    def between(self, plain: Any, other: Any, inputs: Any) -> Timed:
        """How many times faster one model is than another, on these inputs."""
        slow, fast = (partial(self._backend.run, model, inputs) for model in (plain, other))
        return compare(slow, fast, self.timing, patience=self._patience)

    def most(self, plan: Plan) -> float:
        """How many times faster than fp32 a plan can be at most where it runs op by op: it cannot gain more
        than its ops do alone.
        """
        return ceiling(plan, self.costs)

    def _call(self, model: Any) -> Callable[[], object]:
        if not self.sizes:
            return lambda: self._backend.run(model, self.example)
        return Mix([(size.weight, partial(self._backend.run, model, size.inputs)) for size in self.sizes])
