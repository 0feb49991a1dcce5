"""The space: what is fastest, and what else an op could be."""

from __future__ import annotations

import pytest

from octune.cost.noise import UNSEEN
from octune.plan import Op, Plan, Scheme
from octune.search import Space
from octune.search.ladder import Rung
from tests.search.simulated import BF16, DYNAMIC, FP32, INT8

MSE, SMOOTHED = Scheme.int8(range_method="mse"), Scheme.int8(repairs=("smooth",))


def space(
    cost: dict[Scheme, float],
    harm: dict[Scheme, float] | None = None,
    schemes: tuple[Scheme, ...] | None = None,
) -> Space:
    choices = tuple(cost) if schemes is None else schemes
    return Space(
        {"a": choices}, {("a", s): v for s, v in (harm or {}).items()}, {("a", s): v for s, v in cost.items()}
    )


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ({INT8: 1.0, DYNAMIC: 2.0, FP32: 3.0}, INT8),
        ({INT8: 1.0, DYNAMIC: 0.9, FP32: 3.0}, INT8),  # dynamic must be clearly faster
        ({INT8: 1.0, DYNAMIC: 0.5, FP32: 3.0}, DYNAMIC),
        ({INT8: 3.0, DYNAMIC: 4.0, FP32: 1.0}, FP32),  # int8 is clearly slower here
        ({INT8: 1.1, FP32: 1.0}, INT8),  # within the noise int8 stays: it is smaller
        ({BF16: 0.5, FP32: 1.0}, FP32),  # bf16 is no reason by itself
        ({FP32: 1.0}, FP32),
        ({INT8: 1.0}, INT8),
    ],
)
def test_fastest(cost: dict[Scheme, float], expected: Scheme) -> None:
    assert space(cost).fastest() == Plan({"a": expected})


def test_of_equally_fast_schemes_the_least_harmful_is_taken() -> None:
    assert space({INT8: 1.0, MSE: 1.0, FP32: 3.0}, {INT8: 0.2, MSE: 0.1}).fastest()["a"] == MSE
    # the first of equals
    assert space({INT8: 1.0, MSE: 1.0, FP32: 3.0}, {INT8: 0.1, MSE: 0.1}).fastest()["a"] == INT8


def test_without_any_timing_static_int8_is_taken() -> None:
    assert space({}, schemes=(DYNAMIC, INT8, BF16, FP32)).fastest()["a"] == INT8


def test_an_op_too_small_to_matter_stays_int8() -> None:
    costs = {("big", INT8): 10.0, ("big", FP32): 100.0, ("tiny", INT8): 0.03, ("tiny", FP32): 0.01}
    both = Space({"big": (INT8, FP32), "tiny": (INT8, FP32)}, {}, costs)
    assert both.fastest() == Plan({"big": INT8, "tiny": INT8})
    assert costs["tiny", INT8] > UNSEEN * costs["tiny", FP32]


def ladder(cost: dict[Scheme, float], harm: dict[Scheme, float] | None = None) -> dict[Scheme, Rung]:
    """The rungs of an op, from the lowest to the highest."""
    return {rung.scheme: rung for rung in space(cost, harm).ladders["a"]}


def test_a_ladder_goes_from_the_fastest_scheme_to_fp32() -> None:
    harm = {INT8: 0.2, MSE: 0.1, SMOOTHED: 0.05, DYNAMIC: 0.001, BF16: 0.0001}
    made = ladder({INT8: 1.0, MSE: 1.0, DYNAMIC: 1.2, SMOOTHED: 1.2, BF16: 2.0, FP32: 4.0}, harm)
    # one of a kind: of the two plain ones the less harmful
    assert list(made) == [MSE, SMOOTHED, DYNAMIC, BF16, FP32]
    assert [rung.kind for rung in made.values()] == ["fastest", "repaired", "dynamic", "bf16", "fp32"]
    assert [rung.harm for rung in made.values()] == [0.1, 0.05, 0.001, 0.0001, 0.0]
    costs = [rung.cost for rung in made.values()]
    assert costs[0] == 0.0
    assert costs == sorted(costs)


def test_a_rung_that_is_beaten_in_both_is_left_out() -> None:
    cost = {INT8: 1.0, DYNAMIC: 3.0, SMOOTHED: 1.2, FP32: 4.0}
    assert list(ladder(cost, {INT8: 0.1, DYNAMIC: 0.05, SMOOTHED: 0.001})) == [INT8, SMOOTHED, FP32]


def test_of_several_repairs_the_least_harmful_is_a_rung() -> None:
    corrected, both = Scheme.int8(repairs=("bias",)), Scheme.int8(repairs=("bias", "smooth"))
    harm = {INT8: 0.1, SMOOTHED: 0.02, corrected: 0.05, both: 0.01}
    assert list(ladder(dict.fromkeys(harm, 1.0) | {FP32: 3.0}, harm)) == [INT8, both, FP32]


def test_fp32_stays_above_bf16_and_bf16_must_be_faster() -> None:
    harm = {INT8: 0.1, BF16: 0.0}
    assert list(ladder({INT8: 1.0, BF16: 2.0, FP32: 4.0}, harm)) == [INT8, BF16, FP32]
    assert list(ladder({INT8: 1.0, BF16: 3.98, FP32: 4.0}, harm)) == [INT8, FP32]


def test_leaving_the_fastest_scheme_is_never_free() -> None:
    harm = {INT8: 0.1, SMOOTHED: 0.01}
    for cost in (
        {INT8: 1.0, SMOOTHED: 1.0, FP32: 0.9},  # fp32 is a little faster by itself
        {
            INT8: 1.0,
            SMOOTHED: 9.0,
            FP32: 1.1,
        },  # a repair is not as expensive as float, whatever a timing says
        {INT8: 0.0, SMOOTHED: 0.0, FP32: 0.0},  # nothing was timed
    ):
        made = ladder(cost, harm)
        assert 0 == made[INT8].cost < made[SMOOTHED].cost < made[FP32].cost


def test_costs_do_not_depend_on_the_noise_of_timing() -> None:
    harm = {INT8: 0.1, DYNAMIC: 0.05, SMOOTHED: 0.01}
    one, two = (
        ladder({INT8: 1.0 + e, DYNAMIC: 1.45 - e, SMOOTHED: 1.21 - e, FP32: 4.4 - 3 * e}, harm)
        for e in (0.0, 0.05)
    )
    assert one == two


def test_what_does_more_harm_or_was_not_looked_at_is_not_a_rung() -> None:
    made = ladder({INT8: 1.0, DYNAMIC: 1.5, SMOOTHED: 1.2, FP32: 4.0}, {INT8: 0.1, DYNAMIC: 0.2})
    assert list(made) == [INT8, FP32]


def test_an_op_left_in_float_for_its_speed_has_nowhere_to_go() -> None:
    assert list(ladder({INT8: 3.0, FP32: 1.0}, {INT8: 0.1})) == [FP32]


def test_whether_dynamic_is_faster_is_decided_over_all_ops() -> None:
    static = {("a", INT8): 1.0, ("b", INT8): 10.0}
    dynamic = {("a", DYNAMIC): 0.5, ("b", DYNAMIC): 11.0}  # one op's timing says so, the sum does not
    both = Space(dict.fromkeys("ab", (INT8, DYNAMIC, FP32)), {}, {**static, **dynamic})
    assert both.fastest() == Plan({"a": INT8, "b": INT8})


def test_total_harm_adds_up() -> None:
    harm = {("a", INT8): 0.1, ("b", INT8): 0.5}
    made = Space(dict.fromkeys("ab", (INT8, FP32)), harm)
    assert made.total_harm(made.fastest()) == pytest.approx(0.6)
    assert made.total_harm(Plan({"a": FP32, "b": INT8})) == 0.5
    assert made.cost("a", INT8) == 0.0


def test_of_ops() -> None:
    made = Space.of([Op("a", "linear", (INT8, FP32)), Op("b", "conv2d")])
    assert dict(made.choices) == {"a": (INT8, FP32), "b": (FP32,)}
    assert made.fastest() == Plan({"a": INT8, "b": FP32})


def test_harm_of_the_whole_is_measured_where_it_can_be() -> None:
    harm = {("a", INT8): 0.1, ("b", INT8): 0.5}
    made = Space(dict.fromkeys("ab", (INT8, FP32)), harm)
    assert made.plan_harm(made.fastest()) == pytest.approx(0.6)
    assert Space(made.choices, harm, {}, lambda plan: 7.0).plan_harm(made.fastest()) == 7.0
