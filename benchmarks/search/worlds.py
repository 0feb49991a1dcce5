"""Simulated models of which everything is known: what every op costs in every scheme, what it does to the
score, and what the probes say about it.

    for world in worlds(seeds=20):
        world.space(), world.kind, world.search(Auto(world.space()))

A dozen kinds, each hard in a way of its own. The harms that strategies see and the true ones are different
numbers here; a trial of a world costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.search.simulated import BF16, DYNAMIC, FP32, INT8, REPAIRED, World

from octune.plan import Plan, Scheme
from octune.search import Space

__all__ = ["KINDS", "Simulated", "worlds"]

SMALL, LARGE = 6, 160  # ops of a world


@dataclass
class Kind:
    """What is special about a kind of world."""

    guilty: float = 0.1  # the share of ops that do real harm
    spread: float = 1.0  # of the harms, in decades
    wrong: float = 0.15  # how far the probe of single ops is off, in decades
    random: bool = False  # the probe of single ops has nothing to do with the truth
    blind: bool = False  # the probe of single ops says nothing
    probe: bool = True  # whole plans can be measured without labels
    groups: int = 0  # pairs that are harmful only together
    noise: float = 0.0  # of the score, as a share of the limit
    costs: float = 0.3  # the spread of the ops' costs, in decades
    repair: float | None = None  # what a repair leaves of an op's harm, by the probe
    repairs_lie: float = 0.0  # the share of repairs that do nothing in truth
    bf16: float | None = None  # what bf16 costs, as a share of fp32
    bf16_works: bool = True


KINDS = {
    "harms of one size": Kind(guilty=1.0, spread=0.3),
    "harms over six decades": Kind(guilty=1.0, spread=2.0),
    "one op does it all": Kind(guilty=0.0),
    "a few guilty ops": Kind(),
    "a few guilty ops, no plan probe": Kind(probe=False),
    "pairs that are harmful together": Kind(guilty=0.02, groups=2),
    "wrong predictions": Kind(wrong=1.0),
    "wrong predictions, no plan probe": Kind(wrong=1.0, probe=False),
    "random predictions": Kind(wrong=3.0, random=True, probe=False, guilty=0.05),
    "blind": Kind(blind=True, probe=False, guilty=0.05),
    "noisy scores": Kind(noise=0.3),
    "costs that differ": Kind(costs=1.0),
    "repairs that help": Kind(repair=0.01),
    "repairs that help a little": Kind(repair=0.3),
    "repairs that do not help": Kind(repair=0.01, repairs_lie=0.5),
    "bf16 is fast": Kind(bf16=0.5),
    "bf16 is broken": Kind(bf16=0.5, bf16_works=False),
    "bf16 is broken, no plan probe": Kind(bf16=0.5, bf16_works=False, probe=False),
}


@dataclass
class Simulated(World):
    """A world with everything that strategies can see of it."""

    kind: str = ""
    seen: Space = field(default_factory=lambda: Space({}))
    costs: dict[tuple[str, Scheme], float] = field(default_factory=dict)
    remains: dict[tuple[str, Scheme], float] = field(default_factory=dict)  # of the harm of int8, in truth
    power: float = 1.0
    noise: float = 0.0
    seed: int = 0

    def true_harm(self, plan: Plan) -> float:
        """The harm of a plan as a whole; it can be borne up to the limit."""
        quantized = {op for op, scheme in plan.items() if not scheme.is_float}
        return sum(self.harm[op] * self.remains.get((op, scheme), 0.0) for op, scheme in plan.items()) + sum(
            extra for ops, extra in self.together.items() if ops <= quantized
        )

    def loss(self, plan: Plan) -> float:
        """What it loses on the evaluation data: more than in proportion to the harm, or less."""
        loss = self.limit * (self.true_harm(plan) / self.limit) ** self.power
        return loss + self.noise * self.limit * self._chance(plan, 1)

    def plan_probe(self, plan: Plan) -> float:
        """What is seen of that on a few samples."""
        return self.true_harm(plan) * float(np.exp(0.3 * self._chance(plan, 2)))

    def _chance(self, plan: Plan, number: int) -> float:
        """A normal number that is always the same for this plan."""
        return float(np.random.default_rng([int(plan.digest[:8], 16), self.seed, number]).normal())


def worlds(seeds: int, first: int = 0) -> Iterator[Simulated]:
    """This many worlds of every kind."""
    for number, (name, kind) in enumerate(KINDS.items()):
        for seed in range(first, first + seeds):
            yield _world(name, kind, np.random.default_rng([seed, number]), seed)


def _world(name: str, kind: Kind, chance: np.random.Generator, seed: int) -> Simulated:
    count = int(np.exp(chance.uniform(np.log(SMALL), np.log(LARGE))))
    ops = [f"op{i:03}" for i in range(count)]
    limit = float(10 ** chance.uniform(-2.5, -1.0))  # the harm that can be borne
    harm = dict.fromkeys(ops, 1e-6 * limit)
    guilty = chance.permutation(ops)[: max(1, round(kind.guilty * count))]
    size = 10 ** chance.normal(0, kind.spread, len(guilty))
    total = limit * 10 ** chance.uniform(-0.3, 1.7)  # from harmless to fifty times too much
    harm |= {str(op): float(part) for op, part in zip(guilty, total * size / size.sum(), strict=True)}
    together = {}
    for _ in range(kind.groups):
        pair = chance.permutation(ops)[:2]
        together[frozenset(map(str, pair))] = limit * float(10 ** chance.uniform(0, 1.5))
    schemes: list[Scheme] = [INT8, DYNAMIC, FP32]
    schemes += [REPAIRED] * (kind.repair is not None) + [BF16] * (kind.bf16 is not None)
    remains: dict[tuple[str, Scheme], float] = {}
    harms: dict[tuple[str, Scheme], float] = {}
    costs: dict[tuple[str, Scheme], float] = {}
    for op in ops:
        milliseconds = 10 ** chance.normal(0, kind.costs)
        gain = chance.uniform(1.2, 4.0)
        costs[op, FP32] = milliseconds
        costs[op, INT8] = milliseconds / gain
        costs[op, DYNAMIC] = 1.3 * milliseconds / gain
        remains[op, INT8], remains[op, DYNAMIC] = 1.0, float(chance.uniform(0.3, 1.2))
        truth = 0.0 if kind.blind else total / count if kind.random else harm[op]
        seen = truth * 10 ** chance.normal(0, kind.wrong)
        harms[op, INT8], harms[op, DYNAMIC] = seen, seen * remains[op, DYNAMIC]
        if kind.repair is not None:
            left = min(2.0, kind.repair * 10 ** chance.normal(0, 0.5))
            remains[op, REPAIRED] = 1.0 if chance.random() < kind.repairs_lie else left
            harms[op, REPAIRED] = seen * left
            costs[op, REPAIRED] = costs[op, INT8] * chance.uniform(1.0, 1.4)
        if kind.bf16 is not None:
            costs[op, BF16] = kind.bf16 * milliseconds
            remains[op, BF16] = 1e-3 if kind.bf16_works else 3.0
            harms[op, BF16] = seen * 1e-3
    costs = {key: ms * float(np.exp(chance.normal(0, 0.05))) for key, ms in costs.items()}
    power = float(2 ** chance.uniform(-1, 1))
    world = Simulated(
        harm, limit, together, kind=name, remains=remains, power=power, noise=kind.noise, seed=seed
    )
    space = Space(dict.fromkeys(ops, tuple(schemes)), harms, costs, world.plan_probe if kind.probe else None)
    world.seen, world.costs = space, costs
    return world
