"""What is made of timings of single ops, which are noisy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.cost.noise import CLEAR, clearly_faster, not_worth_int8, on_grid


def test_faster_is_only_what_noise_does_not_explain() -> None:
    assert clearly_faster(1.0, 1.01 * CLEAR)
    assert not clearly_faster(1.0, 0.99 * CLEAR)
    assert not clearly_faster(0.0, 1.0)  # it was not timed


@given(st.floats(1e-6, 1e6))
def test_the_grid_is_never_further_than_half_a_step_away(cost: float) -> None:
    assert CLEAR**-0.5001 <= on_grid(cost) / cost <= CLEAR**0.5001
    assert on_grid(on_grid(cost)) == pytest.approx(on_grid(cost))


def test_what_was_not_timed_is_not_on_the_grid() -> None:
    assert on_grid(0.0) == 0.0


@pytest.mark.parametrize(
    ("int8", "fp32", "total", "expected"),
    [
        (3.0, 1.0, 10.0, True),
        (1.4, 1.0, 10.0, False),  # slower, but int8 saves its neighbours something
        (3.0, 1.0, 100.0, False),  # two of a hundred do not matter
        (0.03, 0.01, 0.05, False),  # the price of a call
        (3.0, 0.0, 10.0, False),  # fp32 was not timed
    ],
)
def test_an_op_stays_in_fp32_only_if_it_pays(int8: float, fp32: float, total: float, expected: bool) -> None:
    assert not_worth_int8(int8, fp32, total) is expected
