"""`basic`: uniform plans, then one op at a time, then cumulatively."""

from __future__ import annotations

from octune.plan import Scheme
from octune.search import Basic, Space
from tests.search.simulated import DYNAMIC, FP32, INT8, World, make_space

MSE = Scheme.int8(range_method="mse")


def test_stage_one_tries_each_way_of_quantizing() -> None:
    world = World({"a": 0.1, "b": 0.1}, limit=1.0)
    world.search(Basic(make_space(world.harm, schemes=(INT8, MSE, DYNAMIC, FP32))))
    assert [proposal.reason for proposal in world.asked] == [f"all {INT8}"]  # the first one passes
    world = World({"a": 0.1, "b": 0.1}, limit=1.0)
    world.search(Basic(make_space(world.harm, schemes=(DYNAMIC, INT8, MSE, FP32)), keep_going=True))
    # static before dynamic
    assert [set(plan.values()) for plan in world.plans[:3]] == [{INT8}, {MSE}, {DYNAMIC}]


def test_stage_two_is_one_op_at_a_time_and_stage_three_cumulative() -> None:
    harm = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.01}
    world = World(harm, limit=0.2)
    world.search(Basic(make_space(harm)))
    fallen = [plan.names("fp32") for plan in world.plans]
    assert fallen == [
        [],  # 1: all int8
        ["a"],  # 2: each one alone
        ["b"],
        ["c"],
        ["d"],
        ["b", "c"],  # 3: the most impact first; ["b"] alone was told before
    ]
    assert world.trials[-1].passed
    assert world.asked[-1].reason == "the 2 ops with the most impact in fp32"


def test_it_stops_in_stage_two_when_one_op_was_all_it_took() -> None:
    harm = {"a": 0.01, "b": 0.4, "c": 0.01}
    world = World(harm, limit=0.1)
    world.search(Basic(make_space(harm)))
    assert [plan.names("fp32") for plan in world.plans] == [[], ["a"], ["b"]]


def test_it_goes_on_with_the_best_of_the_uniform_plans() -> None:
    harm = {"a": 0.1, "b": 0.1}

    class Fussy(World):
        def loss(self, plan):  # type: ignore[no-untyped-def]
            return super().loss(plan) + sum(0.05 for scheme in plan.values() if scheme == INT8)

    world = Fussy(harm, limit=0.15)
    world.search(Basic(make_space(harm, schemes=(INT8, MSE, FP32))))
    assert set(world.plans[2].values()) == {MSE, FP32}
    assert world.trials[-1].passed


def test_everything_in_fp32_is_the_end() -> None:
    world = World({"a": 0.1, "b": 0.1}, limit=-1.0)
    world.search(Basic(make_space(world.harm)))
    assert world.plans[-1].counts() == {"fp32": 2}
    assert len(set(world.plans)) == len(world.plans)


def test_trials_that_fail_come_last_in_impact() -> None:
    harm = {"a": 0.3, "b": 0.3, "c": 0.3}
    world = World(harm, limit=0.25, fails=lambda plan: plan.names("fp32") == ["a"])
    world.search(Basic(make_space(harm)))
    assert [plan.names("fp32") for plan in world.plans] == [
        [],
        ["a"],
        ["b"],
        ["c"],
        ["b", "c"],
        ["a", "b", "c"],
    ]


def test_uniform_plans_take_the_nearest_scheme_an_op_has() -> None:
    weight = Scheme.int8("weight")
    space = Space(
        {"emb": (weight, FP32), "fc": (INT8, DYNAMIC, FP32), "odd": (FP32,), "dyn": (DYNAMIC, FP32)}
    )
    strategy = Basic(space)
    proposal = strategy.ask()
    assert proposal is not None
    assert dict(proposal.plan) == {"emb": weight, "fc": INT8, "odd": FP32, "dyn": DYNAMIC}


def test_a_model_of_embeddings_alone_is_tried_too() -> None:
    weight = Scheme.int8("weight")
    proposal = Basic(Space({"emb": (weight, FP32)})).ask()
    assert proposal is not None
    assert dict(proposal.plan) == {"emb": weight}


def test_nothing_to_quantize_is_no_trial() -> None:
    assert Basic(Space({"odd": (FP32,)})).ask() is None


def test_if_no_uniform_plan_can_be_scored_there_is_nowhere_to_go() -> None:
    world = World({"a": 0.1}, limit=1.0, fails=lambda plan: True)
    world.search(Basic(make_space(world.harm, schemes=(INT8, MSE, FP32))))
    assert len(world.trials) == 2
