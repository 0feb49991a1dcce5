"""`auto` needs one evaluation where int8 is harmless or can be repaired, and 1 + log2(n) at most where it
cannot.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.harm import WORST
from octune.plan import Plan, Scheme
from octune.result import Trial
from octune.search import Auto, Proposal, Space
from octune.search.start import COMFORTABLE, HOPELESS
from tests.search.simulated import BF16, FP32, INT8, REPAIRED, World, make_space


def ops(n: int, each: float = 1e-6) -> dict[str, float]:
    return {f"op{i:03}": each for i in range(n)}


def most(n: int, passed: bool = True) -> int:
    """What the docstring promises; as many again if nothing passes."""
    limit = max(3, 1 + int(math.log2(n)))
    return limit if passed else 2 * limit + 1


@pytest.mark.parametrize("n", [1, 7, 144])
def test_harmless_int8_is_one_evaluation(n: int) -> None:
    world = World(ops(n), limit=0.1)
    world.search(Auto(make_space(world.harm)))
    assert len(world.trials) == 1
    assert world.best.plan.counts() == {"int8": n}


# -- repairs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 32, 144])
def test_what_stands_out_is_repaired_before_the_first_evaluation(n: int) -> None:
    harm = ops(n) | {"op001": 0.5, "op004": 0.1}
    world = World(harm, limit=0.01)
    world.search(Auto(make_space(harm, schemes=(INT8, REPAIRED, FP32), plan_probe=world.loss)))
    assert len(world.trials) == 1
    assert {op for op, scheme in world.best.plan.items() if scheme == REPAIRED} == {"op001", "op004"}
    assert world.best.plan.counts() == {"int8": n}


def test_where_harm_is_comfortable_nothing_is_repaired() -> None:
    harm = ops(20) | {"op003": 0.9 * COMFORTABLE}
    world = World(harm, limit=1.0)
    world.search(Auto(make_space(harm, schemes=(INT8, REPAIRED, FP32), plan_probe=world.loss)))
    assert set(world.plans[0].values()) == {INT8}


def test_a_repair_that_does_not_help_the_whole_is_left_out() -> None:
    harm = ops(20) | {"op003": 0.1}

    class Deceived(World):
        def loss(self, plan: Plan) -> float:
            # a repair changes nothing, whatever the probe says
            return sum(self.harm[op] for op in plan.names("int8"))

    world = Deceived(harm, limit=0.01)
    world.search(Auto(make_space(harm, schemes=(INT8, REPAIRED, FP32), plan_probe=world.loss)))
    assert set(world.plans[0].values()) == {INT8}
    assert world.best.plan.names("fp32") == ["op003"]


def test_a_repair_that_helps_too_little_is_passed_over() -> None:
    harm = ops(20) | {"op003": 0.1}
    space = make_space(harm, schemes=(INT8, REPAIRED, FP32))
    proposal = Auto(Space(space.choices, dict(space.harms) | {("op003", REPAIRED): 0.05}, space.costs)).ask()
    assert proposal is not None
    assert proposal.plan["op003"] == INT8


# -- tightening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 8, 38, 144, 400])
@pytest.mark.parametrize("where", ["first", "last"])
def test_one_guilty_op_that_the_probe_sees_is_two_evaluations(n: int, where: str) -> None:
    harm = ops(n)
    guilty = list(harm)[0 if where == "first" else -1]
    harm[guilty] = 0.4
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm)))
    assert len(world.trials) == 2
    assert world.best.plan.names("fp32") == [guilty]


@pytest.mark.parametrize("count", [2, 5, 11])
def test_a_few_guilty_ops_are_found_at_once(count: int) -> None:
    harm = ops(144)
    guilty = sorted(list(harm)[3 : 3 + 7 * count : 7])
    for op in guilty:
        harm[op] = 0.2
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm)))
    assert world.best.plan.names("fp32") == guilty
    assert len(world.trials) <= most(144)


def test_a_hopeless_plan_is_not_evaluated() -> None:
    harm = ops(32) | {"op005": 2 * HOPELESS}
    world = World(harm, limit=0.01)
    world.search(Auto(make_space(harm, plan_probe=world.loss)))
    assert len(world.trials) == 1
    assert world.best.plan.names("fp32") == ["op005"]


def test_an_op_that_does_not_run_is_found_without_an_evaluation() -> None:
    harm = ops(32)
    world = World(harm, limit=0.1, fails=lambda plan: plan.get("op010") == INT8)
    world.search(
        Auto(
            make_space(harm, plan_probe=lambda plan: WORST if plan.get("op010") == INT8 else world.loss(plan))
        )
    )
    assert len(world.trials) == 1
    assert world.best.plan.names("fp32") == ["op010"]


@pytest.mark.parametrize("pair", [("op003", "op004"), ("op001", "op030")])
def test_ops_that_are_harmful_only_together_are_found_without_an_evaluation(pair: tuple[str, str]) -> None:
    harm = ops(32)
    world = World(harm, limit=0.01, together={frozenset(pair): 0.9})
    world.search(Auto(make_space(harm, plan_probe=world.loss)))
    assert len(world.trials) <= 2
    assert set(world.best.plan.names("fp32")) <= set(pair)
    assert world.best.plan.names("fp32")


def test_a_plan_that_is_nearly_all_int8_is_given_one_more_evaluation() -> None:
    harm = ops(64)
    harm["op010"] = harm["op020"] = 0.4
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm)))
    passed = next(index for index, trial in enumerate(world.trials, 1) if trial.passed)
    assert len(world.trials) <= max(passed, 2)


def test_giving_back_frees_ops_that_fell_for_nothing() -> None:
    harm = ops(32)
    suspects = {f"op{index:03}": 0.2 - 0.01 * index for index in range(10)}
    believed = dict.fromkeys(harm, 1e-6) | suspects
    harm["op009"] = 0.4  # the others are suspected, but innocent
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=believed)))
    assert "op009" in world.best.plan.names("fp32")
    assert len(world.best.plan.names("fp32")) < len(suspects)
    assert len(world.trials) <= most(32)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=80), st.floats(0, 2), st.booleans())
def test_the_bound_holds_whatever_the_harms(harms: list[float], limit: float, seen: bool) -> None:
    harm = {f"op{i:03}": value for i, value in enumerate(harms)}
    world = World(harm, limit=limit)
    world.search(Auto(make_space(harm, plan_probe=world.loss if seen else None)))
    first = next((i for i, trial in enumerate(world.trials) if trial.passed), None)
    assert len(world.trials) <= most(len(harm), passed=first is not None and first < most(len(harm)))
    assert len(set(world.plans)) == len(world.plans)
    assert all(plan.names("int8") for plan in world.plans[1:])  # fp32 is known without another evaluation


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60), st.floats(0, 1))
def test_and_whatever_the_probe_says(pairs: list[tuple[float, float]], limit: float) -> None:
    harm = {f"op{i:03}": true for i, (true, _) in enumerate(pairs)}
    believed = {f"op{i:03}": guess for i, (_, guess) in enumerate(pairs)}
    world = World(harm, limit=limit)
    world.search(Auto(make_space(harm, believed=believed)))
    first = next((i for i, trial in enumerate(world.trials) if trial.passed), None)
    assert len(world.trials) <= most(len(harm), passed=first is not None and first < most(len(harm)))


@settings(max_examples=60)
@given(st.lists(st.floats(1e-6, 0.3), min_size=8, max_size=60), st.floats(0.01, 0.2))
def test_a_good_probe_leads_to_a_plan_that_passes(harms: list[float], limit: float) -> None:
    harm = {f"op{i:03}": value for i, value in enumerate(harms)}
    world = World(harm, limit=limit)
    world.search(Auto(make_space(harm, plan_probe=world.loss)))
    passes_something = min(harm.values()) <= limit
    assert (
        any(trial.passed for trial in world.trials)
        or not passes_something
        or sum(sorted(harms)[: len(harms) // 8]) > limit
    )


def test_without_any_probe_it_still_ends() -> None:
    harm = ops(64) | {"op040": 0.5}
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=dict.fromkeys(harm, 0.0))))
    assert any(trial.passed for trial in world.trials)
    assert len(world.trials) <= most(64, passed=False)


@pytest.mark.parametrize("guilty", ["op000", "op001", "op002"])
def test_a_guilty_op_of_a_few_is_found_however_blind_the_probe(guilty: str) -> None:
    harm = ops(3) | {guilty: 0.5}
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=ops(3))))
    assert world.best.plan[guilty] == FP32


def test_a_model_that_cannot_be_helped_ends_with_nearly_all_in_float() -> None:
    world = World(ops(16), limit=-1.0)
    world.search(Auto(make_space(world.harm)))
    assert not any(trial.passed for trial in world.trials)
    assert world.plans[-1].counts() == {"fp32": 14, "int8": 2}
    assert len(world.trials) <= most(16, passed=False)


def test_ops_without_a_float_scheme_are_left_alone() -> None:
    world = World(ops(4), limit=-1.0)
    world.search(Auto(make_space(world.harm, schemes=(INT8,))))
    assert [plan.counts() for plan in world.plans] == [{"int8": 4}]


def test_nothing_to_quantize_is_one_trial_of_fp32() -> None:
    world = World({}, limit=0.0)
    world.search(Auto(make_space({})))
    assert len(world.trials) == 1


@pytest.mark.parametrize("drop", [-0.5, 0.0, 0.05, math.inf, math.nan])
def test_a_verdict_may_fail_whatever_the_drop(drop: float) -> None:
    """With a confidence, a plan that lost less than is allowed can fail all the same."""

    class Uncertain(World):
        def run(self, proposal: Proposal) -> Trial:
            trial = super().run(proposal)
            assert trial.verdict is not None
            return replace(trial, verdict=replace(trial.verdict, outcome="undecidable", drop=drop))

    harm = ops(20) | {"op003": 0.1}
    world = Uncertain(harm, limit=0.1)
    world.search(Auto(make_space(harm, plan_probe=world.loss)))
    assert 1 < len(world.trials) <= most(20, passed=False)


# -- bf16 ----------------------------------------------------------------------------------------------------


def quick_bf16(op: str, scheme: Scheme) -> float:
    return {"int8": 1.0, "bf16": 1.5, "fp32": 3.0}[scheme.dtype]


def test_bf16_is_where_an_op_goes_if_it_is_clearly_faster() -> None:
    harm = ops(8) | {"op001": 0.5}
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, schemes=(INT8, BF16, FP32), cost=quick_bf16)))
    assert world.best.plan["op001"] == BF16


@pytest.mark.parametrize("broken", ["scores badly", "does not run"])
def test_where_bf16_is_no_way_out_fp32_is(broken: str) -> None:
    harm = ops(12) | {"op004": 0.5}

    class NoBf16(World):
        def loss(self, plan: Plan) -> float:
            return super().loss(plan) + (0.5 * len(plan.names("bf16")) if broken == "scores badly" else 0.0)

    world = NoBf16(harm, limit=0.1, fails=lambda plan: broken == "does not run" and bool(plan.names("bf16")))
    world.search(Auto(make_space(harm, schemes=(INT8, BF16, FP32), cost=quick_bf16)))
    assert "op004" in world.best.plan.names("fp32")
    assert not world.best.plan.names("bf16")


# -- time to spend -------------------------------------------------------------------------------------------


def test_with_time_to_spend_every_fallen_op_is_given_another_chance() -> None:
    harm = ops(16) | {f"op{i:03}": 0.2 for i in range(6)}
    believed = dict(harm) | {f"op{i:03}": 0.2 for i in range(6, 12)}  # six innocent ops look as guilty
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=believed), keep_going=True))
    assert world.best.plan.names("fp32") == [f"op{i:03}" for i in range(6)]


def test_with_time_to_spend_repairs_that_are_not_needed_are_taken_off_again() -> None:
    harm = ops(16) | {"op002": 0.2, "op005": 0.1}
    world = World(harm, limit=0.15)
    world.search(
        Auto(make_space(harm, schemes=(INT8, REPAIRED, FP32), plan_probe=world.loss), keep_going=True)
    )
    assert any(
        trial.passed and trial.plan["op005"] == INT8 and trial.plan["op002"] == REPAIRED
        for trial in world.trials
    )
