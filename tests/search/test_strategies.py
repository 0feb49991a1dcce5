"""What holds for every strategy: ask and tell are deterministic, and what was told is not asked again."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.plan import Plan, Scheme
from octune.search import STRATEGIES, Space, Strategy, Tpe
from octune.search.base import Proposal, Search
from tests.search.simulated import BF16, DYNAMIC, FP32, INT8, REPAIRED, World, make_space

EVERYTHING = (INT8, REPAIRED, DYNAMIC, BF16, FP32)

every = pytest.mark.parametrize("name", sorted(STRATEGIES))
# Strategies that would go on for as long as there are plans, and how many of their trials are enough to see
# what is asked here.
MOST = {"bayesian": 10, "exhaustive": 40, "random": 40, "tpe": 20}
harms = st.dictionaries(st.sampled_from([f"op{i}" for i in range(12)]), st.floats(0, 1), min_size=1)


@every
@settings(max_examples=5)
@given(harm=harms, limit=st.floats(0, 2), keep_going=st.booleans())
def test_the_same_answers_lead_to_the_same_questions(
    name: str, harm: dict[str, float], limit: float, keep_going: bool
) -> None:
    def run(order: list[str]) -> list[Proposal]:
        world = World(harm, limit)
        space = make_space({op: harm[op] for op in order}, schemes=(INT8, DYNAMIC, FP32))
        world.search(STRATEGIES[name](space, keep_going=keep_going, seed=7), MOST.get(name, 1000))
        assert len(set(world.plans)) == len(world.plans)  # no plan is tried twice
        return world.asked

    assert run(list(harm)) == run(list(harm))


@every
def test_asking_twice_is_the_same_question(name: str) -> None:
    strategy = STRATEGIES[name](make_space({"a": 0.1, "b": 0.2}))
    assert strategy.ask() is strategy.ask()


@every
def test_all_plans_are_legal(name: str) -> None:
    harm = {f"op{i}": 0.1 * i for i in range(9)}
    world, space = World(harm, limit=0.3), make_space(harm, schemes=EVERYTHING)
    world.search(STRATEGIES[name](space, keep_going=True), MOST.get(name, 1000))
    for plan in world.plans:
        assert set(plan) == set(harm)
        assert all(scheme in space.choices[op] for op, scheme in plan.items())


@every
def test_a_resumed_search_continues_where_it_was(name: str) -> None:
    harm = {f"op{i}": 0.05 * i for i in range(9)}
    whole = World(harm, limit=0.3)
    whole.search(STRATEGIES[name](make_space(harm)), MOST.get(name, 1000))
    answers = {trial.plan: trial for trial in whole.trials[: len(whole.trials) // 2]}
    resumed = World(harm, limit=0.3)
    strategy = STRATEGIES[name](make_space(harm))
    while (proposal := strategy.ask()) is not None and len(resumed.trials) < MOST.get(name, 1000):
        known = answers.get(proposal.plan)
        strategy.tell(known if known is not None else resumed.run(proposal))
        resumed.trials.append(strategy._told[proposal.plan])
    assert resumed.plans == whole.plans


@every
def test_it_finds_a_plan_that_passes(name: str) -> None:
    harm = {f"op{i}": 1e-6 for i in range(10)} | {"op3": 0.4, "op7": 0.3}
    world = World(harm, limit=0.1)
    world.search(STRATEGIES[name](make_space(harm)), 100)
    assert world.trials[-1].passed or name == "auto"  # which may try to give something back after that
    assert {"op3", "op7"} <= set(world.best.plan.names("fp32"))


@pytest.mark.parametrize(
    ("name", "most"), [("bayesian", 12), ("exhaustive", 500), ("random", 40), ("tpe", 40)]
)
def test_these_can_choose_every_rung(name: str, most: int) -> None:
    harm = {f"op{i}": 0.1 for i in range(4)}

    def cost(op: str, scheme: Scheme) -> float:
        return {"int8": 1.0, "bf16": 1.5, "fp32": 3.0}[scheme.dtype] + 0.2 * (scheme == DYNAMIC)

    space = make_space(harm, schemes=EVERYTHING, cost=cost)
    # less than repaired, which is cheaper, or it would not be a rung
    harms = dict(space.harms) | {(op, DYNAMIC): 5e-5 for op in harm}
    world = World(harm, limit=-1.0)
    world.search(STRATEGIES[name](Space(space.choices, harms, space.costs), seed=1), most)
    assert {scheme for plan in world.plans for scheme in plan.values()} == set(EVERYTHING)


@pytest.mark.parametrize("name", ["bayesian", "random", "tpe"])
def test_another_seed_draws_other_plans(name: str) -> None:
    harm = {f"op{i}": 0.1 for i in range(12)}

    def plans(seed: int) -> list[Plan]:
        world = World(harm, limit=-1.0)
        world.search(STRATEGIES[name](make_space(harm), seed=seed), 15)
        return world.plans

    assert plans(1) != plans(2)


@pytest.mark.parametrize("name", ["bayesian", "random", "tpe"])
def test_samplers_end_when_everything_was_drawn(name: str) -> None:
    world = World({"a": 0.1, "b": 0.1}, limit=-1.0)
    world.search(STRATEGIES[name](make_space(world.harm)), 50)
    assert len(world.trials) == 3  # all but fp32, which is known


def test_exhaustive_goes_from_the_fastest_to_the_slowest() -> None:
    harm = {f"op{i}": 0.1 for i in range(4)}
    world = World(harm, limit=-1.0)
    space = make_space(harm, schemes=(INT8, BF16, FP32))
    world.search(STRATEGIES["exhaustive"](space))
    extra = {(op, rung.scheme): rung.cost for op, ladder in space.ladders.items() for rung in ladder}
    costs = [sum(extra[item] for item in plan.items()) for plan in world.plans]
    assert costs == pytest.approx(sorted(costs))
    assert len(world.plans) == 3**4 - 2**4  # every plan with something in int8, once


def test_mse_follows_the_error() -> None:
    harm = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.01}
    world = World(harm, limit=0.2)
    world.search(STRATEGIES["mse"](make_space(harm)))
    assert [plan.names("fp32") for plan in world.plans] == [[], ["b"], ["b", "c"]]


def test_optuna_is_not_imported_before_it_is_needed_and_keeps_its_voice() -> None:
    code = "import sys, octune; print('optuna' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )
    import optuna

    before = optuna.logging.get_verbosity()
    STRATEGIES["tpe"](make_space({"a": 0.1})).ask()
    assert optuna.logging.get_verbosity() == before


def test_many_ops_share_choices() -> None:
    harm = {f"op{i:03}": 1.0 / (i + 1) for i in range(150)}
    strategy = Tpe(make_space(harm))
    groups = strategy._groups()
    assert len(groups) < 40
    # the most harmful ones for themselves
    assert [ops for ops, _ in groups[:8]] == [[f"op{i:03}"] for i in range(8)]
    assert sorted(op for ops, _ in groups for op in ops) == sorted(harm)


@pytest.mark.parametrize(("name", "known"), [("exhaustive", 12), ("random", 12), ("tpe", 3)])
def test_what_is_announced_is_what_is_asked_for(name: str, known: int) -> None:
    harm = {f"op{i}": 0.1 for i in range(9)}
    space, worlds = make_space(harm, schemes=EVERYTHING), [World(harm, limit=-1.0) for _ in range(2)]
    for world in worlds:
        strategy, announced = STRATEGIES[name](space, seed=3), list[Proposal]()
        while len(world.trials) < 13 and (proposal := strategy.ask()) is not None:
            if world is worlds[0] and not announced:
                announced = list(islice(strategy.ahead(), 12))
                assert len(announced) == known
            elif announced:
                assert proposal == announced.pop(0)
            world.trials.append(world.run(proposal))
            strategy.tell(world.trials[-1])
    assert worlds[0].plans == worlds[1].plans  # whoever looks ahead changes nothing


@pytest.mark.parametrize("name", ["auto", "basic", "bayesian", "mse"])
def test_these_wait_for_every_answer(name: str) -> None:
    strategy = STRATEGIES[name](make_space({f"op{i}": 0.1 for i in range(9)}))
    strategy.ask()
    assert not list(strategy.ahead())


class Repeating(Strategy):
    """Asks for the same plan three times."""

    def search(self) -> Search:
        plan = self.space.fastest()
        self.answers = []
        for _ in range(3):
            self.answers.append((yield Proposal(plan, "again")))
        yield Proposal(plan.with_(a=FP32), "something new")


def test_told_plans_are_not_asked_again_but_answered() -> None:
    world = World({"a": 0.1}, limit=1.0)
    strategy = Repeating(make_space(world.harm))
    world.search(strategy)
    assert [proposal.reason for proposal in world.asked] == ["again", "something new"]
    assert strategy.answers == [world.trials[0]] * 3
    assert strategy.ask() is None
