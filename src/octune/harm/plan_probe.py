"""What a whole plan does to the output, measured without labels on a few calibration batches.

    plan_probe = PlanProbe(backend, ranges, inputs, journal)
    plan_probe(plan)                  # squared change of the output over the output's variance

Harms of single ops are added up to predict a plan's. Where errors meet (a producer and its consumer, Q and K,
a residual pair) the whole is worse than the sum, and only running the whole shows it. That is one forward
pass over a handful of samples: next to nothing beside an evaluation, so no evaluation is spent on a plan
before it was looked at in this way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from octune.calibration import Ranges
from octune.harm.probe import output_change
from octune.plan import Plan

if TYPE_CHECKING:
    from octune.backends.base import Backend
    from octune.backends.terms import Outputs
    from octune.engine.journal import Journal

__all__ = ["WORST", "PlanProbe"]

log = logging.getLogger("octune")
# An output that is infinite or NaN is as bad as it gets; neither can be compared, nor kept in a journal.
WORST = 1e9


class PlanProbe:
    """Measures plans, each once: answers are kept in the journal, so that a resumed run decides as the first
    one did.
    """

    def __init__(
        self,
        backend: Backend,
        ranges: Ranges,
        inputs: Sequence[Any],
        journal: Journal,
        through: Callable[[Plan, Ranges, Callable[[], float]], float] = lambda plan, ranges, here: here(),
    ) -> None:
        self._backend, self._ranges, self._inputs, self._journal = backend, ranges, inputs, journal
        self._through = through  # lets a plan be measured here, or has it done in another process
        self._wanted: list[Outputs] | None = None

    def __call__(self, plan: Plan) -> float:
        """The harm of this plan; ops that it does not name are fp32."""
        plan = Plan({op: scheme for op, scheme in plan.items() if scheme.dtype != "fp32"})
        key = {"samples": self._ranges.samples, "plan": plan.digest}

        def measured() -> float:
            return self._through(plan, self._ranges, lambda: self.measure(plan))

        harm: float = self._journal.once("plan harm", key, measured)
        return harm

    def measure(self, plan: Plan) -> float:
        """Run the plan, whatever is known of it."""
        if self._wanted is None:
            self._wanted = self._backend.outputs(Plan(), self._ranges, self._inputs)
        try:
            harm = output_change(self._wanted, self._backend.outputs(plan, self._ranges, self._inputs))
        # A plan that does not run here is no reason to end the search: its trial would fail and be recorded.
        except Exception:
            log.debug("plan probe of %r", plan, exc_info=True)
            return WORST
        return min(harm, WORST) if math.isfinite(harm) else WORST
