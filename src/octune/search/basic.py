"""The strategy that iLiT and LPOT users know as ``basic``.

1. All-int8 plans: one for each way of quantizing (mode, granularity, range method) that the ops share.
   Nothing is repaired.
2. From the best of them, one op at a time back to fp32.
3. Cumulative: the ops whose fallback helped most go back to fp32 together, one more each time.

Costs up to 2 n evaluations for n ops: 100 trials end before stage 2 does on BERT-large. ``auto`` is the
better choice.
"""

from __future__ import annotations

from octune.errors import plural
from octune.plan import Plan, Scheme
from octune.result import Trial
from octune.search.base import Proposal, Search, Strategy

__all__ = ["Basic"]


class Basic(Strategy):
    """See the module's docstring."""

    def search(self) -> Search:
        best: Trial | None = None
        for variant in self._variants():
            trial = yield Proposal(self._uniform(variant), f"all {variant}")
            if trial.passed and not self.keep_going:
                return
            best = _better(best, trial)
        if best is None:
            return
        base = best.plan
        impact: list[tuple[float, str]] = []
        for name in base.names("int8"):
            trial = yield Proposal(base.with_({name: Scheme.fp32()}), f"{name} in fp32")
            if trial.passed and not self.keep_going:
                return
            impact.append((_drop(trial), name))
        plan = base
        for count, (_, name) in enumerate(sorted(impact), 1):
            plan = plan.with_({name: Scheme.fp32()})
            trial = yield Proposal(plan, f"the {plural(count, 'op')} with the most impact in fp32")
            if trial.passed and not self.keep_going:
                return

    def _variants(self) -> list[Scheme]:
        seen: dict[Scheme, int] = {}
        for schemes in self.space.choices.values():
            for scheme in schemes:
                if not scheme.is_float and not scheme.repairs:
                    seen[scheme] = seen.get(scheme, 0) + 1
        # Embeddings follow whatever the others do; they make a variant only where there is nothing else.
        ways = [scheme for scheme in seen if scheme.mode != "weight"] or list(seen)
        return sorted(
            ways, key=lambda s: (("static", "dynamic", "token", "weight").index(s.mode or ""), -seen[s])
        )

    def _uniform(self, variant: Scheme) -> Plan:
        """Every op in this variant, or the nearest that it has."""
        return Plan(
            {
                op: min(schemes, key=lambda s: _distance(s, variant))
                for op, schemes in self.space.choices.items()
            }
        )


def _distance(scheme: Scheme, wanted: Scheme) -> tuple[bool, bool, bool, bool, bool]:
    return (
        scheme.is_float,
        scheme.repairs != wanted.repairs,
        scheme.mode != wanted.mode,
        scheme.granularity != wanted.granularity,
        scheme.range_method != wanted.range_method,
    )


def _drop(trial: Trial) -> float:
    return trial.verdict.drop if trial.verdict is not None else float("inf")


def _better(best: Trial | None, trial: Trial) -> Trial | None:
    if trial.verdict is None:
        return best
    return trial if best is None or _drop(trial) < _drop(best) else best
