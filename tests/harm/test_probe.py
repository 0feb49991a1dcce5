"""How far outputs are from each other."""

from __future__ import annotations

import numpy as np
import pytest

from octune.harm.probe import largest_change

ROWS = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)


def test_the_largest_change_is_that_of_a_single_number_over_the_spread() -> None:
    other = ROWS.copy()
    other[7, 1] += 0.5
    assert largest_change([{"x": ROWS}], [{"x": ROWS}]) == 0.0
    assert largest_change([{"x": ROWS}], [{"x": other}]) == pytest.approx(0.5 / ROWS.std(), rel=0.05)
    assert largest_change([{"x": 1000 * ROWS}], [{"x": 1000 * other}]) == pytest.approx(0.5, rel=0.1)
    assert largest_change([{"x": ROWS + 1000}], [{"x": other + 1000}]) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    "other",
    [
        {"x": ROWS},
        {"x": ROWS, "ids": np.arange(1, 4)},
        {"x": ROWS[:5], "ids": np.arange(3)},
        {"x": np.full_like(ROWS, np.nan), "ids": np.arange(3)},
    ],
    ids=["an output is missing", "other whole numbers", "another shape", "no numbers"],
)
def test_what_is_not_the_same_kind_of_answer_is_infinitely_far(other: dict[str, np.ndarray]) -> None:
    assert largest_change([{"x": ROWS, "ids": np.arange(3)}], [other]) == np.inf


def test_a_single_sample_is_compared_with_itself() -> None:
    one = np.array([[3.0, 4.0]], np.float32)
    assert largest_change([{"x": one}], [{"x": one + 0.01}]) == pytest.approx(0.01 / 3.54, rel=0.01)
