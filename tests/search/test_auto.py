"""`auto` needs one evaluation where int8 is harmless, and O(log n) where it is not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.plan import Plan, Scheme
from octune.search import Auto
from octune.search.auto import GIVE_BACK
from tests.search.simulated import BF16, FP32, INT8, World, make_space


def ops(n: int, each: float = 1e-4) -> dict[str, float]:
    return {f"op{i:03}": each for i in range(n)}


def budget(n: int) -> int:
    """What the docstring promises, with the two trials of giving back."""
    return 2 + math.ceil(math.log2(max(2, n))) + GIVE_BACK


@pytest.mark.parametrize("n", [1, 7, 144])
def test_harmless_int8_is_one_evaluation(n: int) -> None:
    world = World(ops(n), limit=0.1)
    world.search(Auto(make_space(world.harm)))
    assert len(world.trials) == 1
    assert world.best.plan.counts() == {"int8": n}


@pytest.mark.parametrize("n", [2, 38, 144, 400])
@pytest.mark.parametrize("where", ["first", "last"])
def test_one_guilty_op_that_the_probe_sees_is_two_evaluations(n: int, where: str) -> None:
    harm = ops(n, 1e-6)
    guilty = list(harm)[0 if where == "first" else -1]
    harm[guilty] = 0.5
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm)))
    assert len(world.trials) == 2
    assert world.best.plan.names("fp32") == [guilty]


@pytest.mark.parametrize("count", [2, 5, 11])
def test_a_few_guilty_ops_are_found_in_logarithmic_time(count: int) -> None:
    harm = ops(144, 1e-6)
    guilty = sorted(list(harm)[3 : 3 + 7 * count : 7])
    for op in guilty:
        harm[op] = 0.2
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm)))
    assert world.best.plan.names("fp32") == guilty
    assert len(world.trials) <= budget(144)


def test_a_guilty_op_that_the_probe_underrates_is_found_too() -> None:
    harm = ops(144, 1e-5)
    believed = {op: 1.0 / (i + 1) for i, op in enumerate(harm)}
    harm["op006"] = 0.5  # seventh in the believed order
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=believed)))
    assert len(world.trials) <= budget(144) + 1
    assert "op006" in world.best.plan.names("fp32")
    assert len(world.best.plan.names("fp32")) <= 7


def test_giving_back_frees_ops_that_fell_for_nothing() -> None:
    harm = ops(20, 1e-6)
    believed = dict.fromkeys(harm, 1e-6) | {"op000": 1.0, "op001": 0.9, "op002": 0.8}
    harm["op002"] = 0.5  # the first two are suspected, but innocent
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=believed)))
    assert world.best.plan.names("fp32") == ["op002"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=80), st.floats(0, 2))
def test_it_always_ends_with_a_plan_that_passes_in_logarithmic_time(harms: list[float], limit: float) -> None:
    harm = {f"op{i:03}": value for i, value in enumerate(harms)}
    world = World(harm, limit=limit)
    world.search(Auto(make_space(harm)))
    assert any(trial.passed for trial in world.trials)  # all float always does
    assert len(world.trials) <= budget(len(harm)) + 3
    assert len(set(world.plans)) == len(world.plans)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60), st.floats(0, 1))
def test_a_probe_that_is_wrong_costs_trials_but_never_the_answer(pairs: list[tuple[float, float]], limit: float) -> None:
    harm = {f"op{i:03}": true for i, (true, _) in enumerate(pairs)}
    believed = {f"op{i:03}": guess for i, (_, guess) in enumerate(pairs)}
    world = World(harm, limit=limit)
    world.search(Auto(make_space(harm, believed=believed)))
    assert any(trial.passed for trial in world.trials)
    assert len(world.trials) <= budget(len(harm)) + 5


def test_without_any_probe_it_still_ends() -> None:
    harm = ops(64, 1e-6) | {"op040": 0.5}
    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, believed=dict.fromkeys(harm, 0.0))))
    assert any(trial.passed for trial in world.trials)
    assert len(world.trials) <= budget(64) + 4


def test_trials_that_fail_are_no_success_and_no_end() -> None:
    harm = ops(16, 1e-6) | {"op003": 0.5}
    world = World(harm, limit=0.1, fails=lambda plan: plan["op010"] == INT8)
    world.search(Auto(make_space(harm)))
    assert any(trial.error for trial in world.trials)
    assert world.best.plan["op010"] == FP32


def test_a_model_that_cannot_be_helped_ends() -> None:
    world = World(ops(8), limit=-1.0)
    world.search(Auto(make_space(world.harm)))
    assert not any(trial.passed for trial in world.trials)
    assert world.plans[-1].counts() == {"fp32": 8}  # it did try everything in float


def test_ops_without_a_float_scheme_are_left_alone() -> None:
    world = World(ops(4), limit=-1.0)
    world.search(Auto(make_space(world.harm, schemes=(INT8,))))
    assert [plan.counts() for plan in world.plans] == [{"int8": 4}]


def test_nothing_to_quantize_is_one_trial_of_fp32() -> None:
    world = World({}, limit=0.0)
    world.search(Auto(make_space({})))
    assert len(world.trials) == 1


def test_bf16_is_where_an_op_goes_if_it_is_clearly_faster() -> None:
    harm = ops(4, 1e-6) | {"op001": 0.5}

    def cost(op: str, scheme: Scheme) -> float:
        return {"int8": 1.0, "bf16": 1.5, "fp32": 3.0}[scheme.dtype]

    world = World(harm, limit=0.1)
    world.search(Auto(make_space(harm, schemes=(INT8, BF16, FP32), cost=cost)))
    assert world.best.plan["op001"] == BF16


@pytest.mark.parametrize("broken", ["scores badly", "does not run"])
def test_where_bf16_is_no_way_out_fp32_is(broken: str) -> None:
    harm = ops(12, 1e-6) | {"op004": 0.5}

    class NoBf16(World):
        def loss(self, plan: Plan) -> float:
            return super().loss(plan) + (0.5 * len(plan.names("bf16")) if broken == "scores badly" else 0.0)

    world = NoBf16(harm, limit=0.1, fails=lambda plan: broken == "does not run" and bool(plan.names("bf16")))
    world.search(Auto(make_space(harm, schemes=(INT8, BF16, FP32), cost=lambda op, s: {"int8": 1.0, "bf16": 1.5, "fp32": 3.0}[s.dtype])))
    assert world.best.plan.names("fp32") == ["op004"]
