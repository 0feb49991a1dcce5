"""A world of which everything is known: ops with a true harm, a limit, and trials that cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octune.criterion import Absolute
from octune.plan import Plan, Scheme
from octune.result import Trial
from octune.score import Score
from octune.search import Proposal, Space, Strategy

INT8, DYNAMIC, FP32, BF16 = Scheme.int8(), Scheme.int8("dynamic"), Scheme.fp32(), Scheme.bf16()
REPAIRED = Scheme.int8(repairs=("smooth",))


def make_space(
    harm: Mapping[str, float],
    *,
    believed: Mapping[str, float] | None = None,
    schemes: tuple[Scheme, ...] = (INT8, FP32),
    cost: Callable[[str, Scheme], float] = lambda op, scheme: {"int8": 1.0, "bf16": 2.5, "fp32": 3.0}[
        scheme.dtype
    ],
    plan_probe: Callable[[Plan], float] | None = None,
) -> Space:
    """Every op has these schemes; what the probe believes of an op's harm is the truth, unless said
    otherwise.
    """
    believed = harm if believed is None else believed
    return Space(
        dict.fromkeys(harm, schemes),
        {
            (op, scheme): believed[op] * left(scheme)
            for op in harm
            for scheme in schemes
            if not scheme.is_float
        },
        {(op, scheme): cost(op, scheme) + 0.1 * len(scheme.repairs) for op in harm for scheme in schemes},
        plan_probe,
    )


def left(scheme: Scheme) -> float:
    """What a scheme leaves of the harm of int8."""
    return 0.0 if scheme.is_float else 0.001 if scheme.repairs else 1.0


@dataclass
class World:
    """Scores a plan by the true harm of its int8 ops; it passes if that is at most ``limit``.

    ``together`` is harm that a set of ops does only if all of them are int8.
    """

    harm: Mapping[str, float]
    limit: float
    together: Mapping[frozenset[str], float] = field(default_factory=dict)
    fails: Callable[[Plan], bool] = lambda plan: False
    asked: list[Proposal] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def loss(self, plan: Plan) -> float:
        quantized = set(plan.names("int8"))
        return sum(self.harm[op] * left(scheme) for op, scheme in plan.items()) + sum(
            extra for ops, extra in self.together.items() if ops <= quantized
        )

    def run(self, proposal: Proposal) -> Trial:
        if self.fails(proposal.plan):
            return Trial(proposal.plan, error="RuntimeError: no kernel")
        trial = Trial(proposal.plan, score=Score.of(1.0 - self.loss(proposal.plan)))
        return trial.judged(Absolute(self.limit), Score.of(1.0))

    def search(self, strategy: Strategy, most: int = 1000) -> list[Trial]:
        """All trials of a strategy, told as they come."""
        while (proposal := strategy.ask()) is not None and len(self.trials) < most:
            self.asked.append(proposal)
            self.trials.append(self.run(proposal))
            strategy.tell(self.trials[-1])
        return self.trials

    @property
    def plans(self) -> list[Plan]:
        return [trial.plan for trial in self.trials]

    @property
    def best(self) -> Trial:
        """The passing trial with the most int8 ops."""
        return max(
            (trial for trial in self.trials if trial.passed), key=lambda trial: len(trial.plan.names("int8"))
        )
