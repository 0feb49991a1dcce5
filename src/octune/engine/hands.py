"""Who does the work of a survey that can be cut into parts: calibration batches, and ops.

    hands = Hands(backend)                          # this process
    hands.observed(inputs, samples)                 # statistics of activations, part after part
    hands.harm(candidates, ranges, inputs)          # by op and scheme
    hands.costs(ops, ranges)

Another engine has hands of its own, which find the same: numbers do not depend on who has found them. What is
done with them, and what the journal says of it, is the survey's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from octune.backends.base import Backend
from octune.calibration import Observed, Ranges, observed
from octune.cost.table import measure_ops
from octune.plan import Op, Scheme

__all__ = ["Hands"]


class Hands:
    """Does everything in this process. ``timer`` is the machine that times ops, for people."""

    timer = "this machine"

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def observed(self, inputs: Iterable[Any], samples: int) -> Iterator[Observed]:
        """What is seen of these inputs, which are about this many samples; in one part or several, in their
        order.
        """
        yield observed(self.backend, inputs)

    def harm(
        self, candidates: Mapping[str, Sequence[Scheme]], ranges: Ranges, inputs: Sequence[Any]
    ) -> dict[tuple[str, Scheme], float]:
        """Label-free harm by op and scheme."""
        return self.backend.harm(candidates, ranges, inputs)

    def costs(self, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
        """Milliseconds by op and scheme."""
        return measure_ops(self.backend, ops, ranges)
