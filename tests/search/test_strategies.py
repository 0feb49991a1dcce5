"""What holds for every strategy: ask and tell are deterministic, and what was told is not asked again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.search import STRATEGIES, Strategy
from octune.search.base import Proposal, Search
from tests.search.simulated import DYNAMIC, FP32, INT8, World, make_space

every = pytest.mark.parametrize("name", sorted(STRATEGIES))
harms = st.dictionaries(st.sampled_from([f"op{i}" for i in range(12)]), st.floats(0, 1), min_size=1)


@every
@settings(max_examples=25, deadline=None)
@given(harm=harms, limit=st.floats(0, 2), keep_going=st.booleans())
def test_the_same_answers_lead_to_the_same_questions(name: str, harm: dict[str, float], limit: float, keep_going: bool) -> None:
    def run(order: list[str]) -> list[Proposal]:
        world = World(harm, limit)
        space = make_space({op: harm[op] for op in order}, schemes=(INT8, DYNAMIC, FP32))
        world.search(STRATEGIES[name](space, keep_going=keep_going, seed=7))
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
    world, space = World(harm, limit=0.3), make_space(harm)
    world.search(STRATEGIES[name](space, keep_going=True))
    for plan in world.plans:
        assert set(plan) == set(harm)
        assert all(scheme in space.choices[op] for op, scheme in plan.items())


@every
def test_a_resumed_search_continues_where_it_was(name: str) -> None:
    harm = {f"op{i}": 0.05 * i for i in range(9)}
    whole = World(harm, limit=0.3)
    whole.search(STRATEGIES[name](make_space(harm)))
    answers = {trial.plan: trial for trial in whole.trials[: len(whole.trials) // 2]}
    resumed = World(harm, limit=0.3)
    strategy = STRATEGIES[name](make_space(harm))
    while (proposal := strategy.ask()) is not None:
        known = answers.get(proposal.plan)
        strategy.tell(known if known is not None else resumed.run(proposal))
        resumed.trials.append(strategy._told[proposal.plan])
    assert resumed.plans == whole.plans


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
