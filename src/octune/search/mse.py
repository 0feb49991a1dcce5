"""The strategy that LPOT users know as ``mse``: ops go back to fp32 in the order of the error they cause.

1. Every op in int8, in its least harmful range method.
2. The op whose int8 moves the model's output most goes back to fp32, then the next one, and so on.

The error is the label-free harm that every backend measures, so there is no framework without it. Costs up to
1 + n evaluations for n ops, and as many as there are guilty ops where the order is right.
"""

from __future__ import annotations

from octune.errors import plural
from octune.plan import Scheme
from octune.search.base import Proposal, Search, Strategy

__all__ = ["Mse"]


class Mse(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        plan = self.space.fastest()
        trial = yield Proposal(plan, "every op in its fastest scheme")
        if trial.passed and not self.keep_going:
            return
        able = [op for op in plan.names("int8") if Scheme.fp32() in self.space.choices[op]]
        ordered = sorted(able, key=lambda op: (-self.space.harm(op, plan[op]), op))
        for count, op in enumerate(ordered, 1):
            plan = plan.with_({op: Scheme.fp32()})
            if not plan.names("int8"):
                return  # how fp32 scores is known already
            trial = yield Proposal(plan, f"the {plural(count, 'op')} with the largest error in fp32")
            # More ops in fp32 are never faster, so the first plan that passes is the best of this way.
            if trial.passed:
                return
