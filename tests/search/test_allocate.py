"""The knapsack: the cheapest choice within a budget of harm."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.search.allocate import Option, allocate
from tests.search.simulated import BF16, FP32, INT8

numbers = st.floats(0.01, 1.0)
ops = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6).map(
    lambda rows: {
        f"op{i}": [
            Option(INT8, harm, 0.0),
            Option(BF16, 0.1 * harm, middle * price),
            Option(FP32, 0.0, price),
        ]
        for i, (harm, price, middle) in enumerate(rows)
    }
)


def totals(options: dict[str, list[Option]], chosen: dict[str, object]) -> tuple[float, float]:
    picked = [
        next(option for option in options[op] if option.scheme == scheme) for op, scheme in chosen.items()
    ]
    return sum(option.harm for option in picked), sum(option.price for option in picked)


@settings(max_examples=60, deadline=None)
@given(ops, st.floats(0.005, 3.0))
def test_it_is_as_good_as_trying_everything(options: dict[str, list[Option]], budget: float) -> None:
    harm, price = totals(options, allocate(options, budget))
    combinations = [
        tuple(zip(options, choice, strict=True)) for choice in itertools.product(*options.values())
    ]
    # Rounding harm up to small steps takes at most a hundredth of the budget.
    possible = [
        sum(o.price for _, o in some)
        for some in combinations
        if sum(o.harm for _, o in some) <= 0.99 * budget
    ]
    assert harm <= budget * (1 + 1e-6)
    assert price <= min(possible) + 1e-5 * max(option.price for some in options.values() for option in some)


@settings(max_examples=60, deadline=None)
@given(ops, st.floats(0.05, 3.0), st.integers(0, 6))
def test_ops_that_must_leave_int8_do_and_the_budget_holds(
    options: dict[str, list[Option]], budget: float, floats: int
) -> None:
    chosen = allocate(options, budget, floats)
    assert sum(scheme.is_float for scheme in chosen.values()) >= min(floats, len(options))
    assert totals(options, chosen)[0] <= budget * (1 + 1e-6)


def test_a_number_of_ops_can_be_made_to_leave_int8() -> None:
    options = {f"op{i}": [Option(INT8, 0.001 * i, 0.0), Option(FP32, 0.0, 1.0)] for i in range(5)}
    chosen = allocate(options, 1.0, floats=2)
    # equal prices: the more harmful ones
    assert [op for op, scheme in chosen.items() if scheme == FP32] == ["op3", "op4"]


@pytest.mark.parametrize("budget", [0.0, 0.05])
def test_without_a_way_out_the_least_harmful_is_all_there_is(budget: float) -> None:
    options = {"a": [Option(INT8, 0.1, 0.0)], "b": [Option(INT8, 0.2, 0.0), Option(FP32, 0.0, 1.0)]}
    assert allocate(options, budget, floats=2) == {"a": INT8, "b": FP32}


def test_nothing_to_choose() -> None:
    assert allocate({}, 1.0) == {}


def test_hundreds_of_ops_take_no_time_to_speak_of() -> None:
    options = {
        f"op{i:03}": [Option(INT8, 10.0 ** -(i % 7), 0.0), Option(FP32, 0.0, 1.0 + i % 5)] for i in range(400)
    }
    harm, _ = totals(options, allocate(options, 0.01))  # type: ignore[arg-type]
    assert harm <= 0.01
