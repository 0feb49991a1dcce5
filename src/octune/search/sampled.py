"""Strategies that draw plans: ``random``, and ``tpe`` and ``bayesian`` with Optuna's samplers.

All begin with every op in its fastest scheme, and can choose for every op: a rung of its ladder
(fastest, repaired, dynamic, bf16, fp32). What is minimised is the predicted cost of plans that pass; plans
that fail come after all of those, in the order of how much they lose.

A sampler learns nothing about a hundred ops from a hundred trials. So ops are sorted by label-free harm, the
most harmful ones have a choice of their own, and further down more and more ops share one: 40 ops are about
20 choices, 150 about 30.

Costs as many evaluations as it is given (``max_trials``, ``timeout``); without a timeout it ends with the
first plan that passes.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from octune.errors import MissingDependency, plural
from octune.plan import Plan
from octune.result import Trial
from octune.search.base import Proposal, Search, Strategy
from octune.search.ladder import KINDS

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial as OptunaTrial

__all__ = ["Bayesian", "Random", "Tpe"]

# This many draws in a row that were drawn before mean that there is nothing left to draw.
PATIENCE = 30
ALONE = 8
STARTUP = 8


class Random(Strategy):
    """A random number of random ops moves to a random rung; few ops are as likely as many, on a scale of
    doublings.
    """

    def search(self) -> Search:
        for proposal in self.announced(self._drawn()):
            trial = yield proposal
            if trial.passed and not self.keep_going:
                return

    def _drawn(self) -> Iterator[Proposal]:
        fastest = self.space.fastest()
        yield Proposal(fastest, "every op in its fastest scheme")
        others = {op: ladder[1:] for op, ladder in self.space.ladders.items() if len(ladder) > 1}
        generator, misses, drawn = np.random.default_rng(self.seed), 0, {fastest}
        while others and misses < PATIENCE:
            count = int((len(others) + 1) ** generator.random())
            moved = generator.permutation(len(others))[:count]
            chosen = [list(others)[index] for index in moved]
            plan = fastest.with_(
                {op: others[op][generator.integers(len(others[op]))].scheme for op in chosen}
            )
            if plan in drawn or not plan.names("int8"):
                misses += 1
                continue
            misses = 0
            drawn.add(plan)
            yield Proposal(plan, f"{plural(count, 'op')} drawn at random")


@dataclass(frozen=True, slots=True)
class _Asked(Proposal):
    """A plan that a sampler has asked for."""

    asked: OptunaTrial = field(compare=False)


class _Sampled(Strategy):
    """Base of the strategies that one of Optuna's samplers steers. It is asked for ``at_once`` plans before
    it is told what came of them, wherever they are tried.
    """

    at_once = 1

    @abstractmethod
    def sampler(self) -> BaseSampler:
        """Optuna's sampler, with this strategy's seed."""

    def search(self) -> Search:
        study, groups, misses = _study(self.sampler()), self._groups(), 0
        from optuna.distributions import CategoricalDistribution

        choices = {str(index): CategoricalDistribution(kinds) for index, (_, kinds) in enumerate(groups)}
        for first in self._beginnings(groups):
            study.enqueue_trial(first)
        while misses < PATIENCE:
            drawn: list[_Asked] = []
            for _ in range(self.at_once):
                asked = study.ask(dict(choices))
                plan = self._plan([(ops, asked.params[str(index)]) for index, (ops, _) in enumerate(groups)])
                # fp32 need not be evaluated: it passes, and costs all there is.
                if not plan.names("int8"):
                    study.tell(asked, 1.0)
                    misses += 1
                    continue
                known = plan in self._told or any(plan == other.plan for other in drawn)
                misses = misses + 1 if known else 0
                drawn.append(_Asked(plan, f"drawn by {type(self).__name__.lower()}", asked))
            for proposal in self.announced(drawn):
                trial = yield proposal
                study.tell(proposal.asked, self._value(trial))
                if trial.passed and not self.keep_going:
                    return

    def _groups(self) -> list[tuple[list[str], tuple[str, ...]]]:
        """Ops that share a choice, the most harmful first, and the kinds of rungs they can choose from."""
        ladders = {op: ladder for op, ladder in self.space.ladders.items() if len(ladder) > 1}
        ops = sorted(ladders, key=lambda op: (-ladders[op][0].harm, op))
        groups, start = [], 0
        while start < len(ops):
            size = max(1, start // ALONE)
            members = ops[start : start + size]
            able = {rung.kind for op in members for rung in ladders[op]}
            groups.append((members, tuple(kind for kind in KINDS if kind in able)))
            start += size
        return groups

    def _beginnings(self, groups: list[tuple[list[str], tuple[str, ...]]]) -> Iterator[dict[str, str]]:
        """All fastest; the most harmful ops on their next rung; the more harmful half in fp32."""
        fastest = {str(index): "fastest" for index in range(len(groups))}
        yield fastest
        for count, rung in ((1, 1), (max(1, len(groups) // 4), 1), (max(1, len(groups) // 2), -1)):
            yield fastest | {str(index): able[rung] for index, (_, able) in enumerate(groups[:count])}

    def _plan(self, chosen: list[tuple[list[str], str]]) -> Plan:
        changes = dict(self.space.fastest())
        for ops, kind in chosen:
            for op in ops:
                found = (rung.scheme for rung in self.space.ladders[op] if rung.kind == kind)
                changes[op] = next(found, changes[op])
        return Plan(changes)

    def _value(self, trial: Trial) -> float:
        """From 0 (as fast as can be) to 1 (as slow as fp32) for plans that pass; above 1 for those that
        fail.
        """
        if trial.passed:
            rungs = [(ladder, trial.plan[op]) for op, ladder in self.space.ladders.items()]
            cost = sum(rung.cost for ladder, scheme in rungs for rung in ladder if rung.scheme == scheme)
            return cost / (sum(ladder[-1].cost for ladder, _ in rungs) or 1.0)
        verdict = trial.verdict
        if verdict is None:
            return 10.0
        # On a scale of doublings: that one plan loses fifty times too much must not make all others look
        # alike.
        return 1.0 + math.log1p(
            max(0.0, verdict.drop / verdict.allowed if verdict.allowed > 0 else verdict.drop)
        )


class Tpe(_Sampled):
    """A tree-structured Parzen estimator: draws what was more common in good plans than in bad ones. It
    learns little from one more answer, so it can wait for four: a cluster scores them at the same time.
    """

    at_once = 4

    def sampler(self) -> BaseSampler:
        from optuna.samplers import TPESampler

        return TPESampler(seed=self.seed, n_startup_trials=STARTUP)


class Bayesian(_Sampled):
    """A Gaussian process over the choices. Optuna's needs torch, whatever framework the model has."""

    def sampler(self) -> BaseSampler:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingDependency("torch", "torch", "tuning.strategy: bayesian") from error
        from optuna.samplers import GPSampler

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is called experimental
            return GPSampler(seed=self.seed, n_startup_trials=STARTUP, deterministic_objective=True)


def _study(sampler: BaseSampler) -> Study:
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(sampler=sampler, direction="minimize")
    finally:
        optuna.logging.set_verbosity(level)
