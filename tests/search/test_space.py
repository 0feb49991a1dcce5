"""The space: what is fastest, and what else an op could be."""

from __future__ import annotations

import pytest

from octune.plan import Op, Plan, Scheme
from octune.search import Space
from octune.search.space import CLEARLY_SLOWER
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
    assert costs["tiny", INT8] > CLEARLY_SLOWER * costs["tiny", FP32]


def test_the_ways_out_of_an_op_have_a_price() -> None:
    harm = {
        ("a", INT8): 0.2,
        ("a", MSE): 0.1,
        ("a", DYNAMIC): 0.05,
        ("a", SMOOTHED): 0.001,
        ("a", BF16): 0.0001,
    }
    cost = {INT8: 1.0, MSE: 1.0, DYNAMIC: 1.5, SMOOTHED: 1.2, BF16: 2.0, FP32: 4.0}
    options = space(cost, {scheme: value for (_, scheme), value in harm.items()}).options("a")
    # the fastest first; one of a kernel
    assert [option.scheme for option in options] == [MSE, DYNAMIC, SMOOTHED, BF16, FP32]
    assert options[0].price == 0.0
    assert {option.scheme: round(option.price, 1) for option in options[1:]} == {
        DYNAMIC: 0.4,
        SMOOTHED: 0.2,
        BF16: 1.4,
        FP32: 3.0,
    }
    assert [option.harm for option in options] == [0.1, 0.05, 0.001, 0.0001, 0.0]


def test_leaving_the_fastest_scheme_is_never_free() -> None:
    made = space({INT8: 1.0, SMOOTHED: 1.0, FP32: 0.9})  # fp32 is a little faster by itself
    assert 0 < made.price("a", SMOOTHED) < made.price("a", FP32)
    # a repair is not as dear as float, whatever one timing says
    noisy = space({INT8: 1.0, SMOOTHED: 9.0, FP32: 1.1})
    assert 0 < noisy.price("a", SMOOTHED) <= noisy.price("a", FP32)
    assert made.price("a", INT8) == 0.0
    assert space({}, schemes=(INT8, FP32)).price("a", FP32) > 0  # and where nothing was timed


def test_prices_do_not_hang_on_the_noise_of_timing() -> None:
    made, again = ({INT8: 1.0 + e, SMOOTHED: 1.21 - e, FP32: 4.0 + 3 * e} for e in (0.0, 0.05))
    assert [space(made).price("a", s) for s in made] == [space(again).price("a", s) for s in again]


def test_what_does_more_harm_or_was_not_looked_at_is_no_way_out() -> None:
    made = space({INT8: 1.0, DYNAMIC: 1.5, SMOOTHED: 1.2, FP32: 4.0}, {INT8: 0.1, DYNAMIC: 0.2})
    assert [option.scheme for option in made.options("a")] == [INT8, FP32]


def test_an_op_left_in_float_for_its_speed_has_nowhere_to_go() -> None:
    assert [option.scheme for option in space({INT8: 3.0, FP32: 1.0}, {INT8: 0.1}).options("a")] == [FP32]


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
    assert made.milliseconds("a", INT8) == 0.0


def test_of_ops() -> None:
    made = Space.of([Op("a", "linear", (INT8, FP32)), Op("b", "conv2d")])
    assert dict(made.choices) == {"a": (INT8, FP32), "b": (FP32,)}
    assert made.fastest() == Plan({"a": INT8, "b": FP32})


def test_harm_of_the_whole_is_measured_where_it_can_be() -> None:
    harm = {("a", INT8): 0.1, ("b", INT8): 0.5}
    made = Space(dict.fromkeys("ab", (INT8, FP32)), harm)
    assert made.plan_harm(made.fastest()) == pytest.approx(0.6)
    assert Space(made.choices, harm, {}, lambda plan: 7.0).plan_harm(made.fastest()) == 7.0
