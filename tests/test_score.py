"""Scores: a value, its items, its interval, and nothing lost on the way through JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.errors import EvaluationError
from octune.score import Score

numbers = st.floats(-1e6, 1e6, allow_nan=False)
items = st.lists(numbers, min_size=1, max_size=40)


def test_a_bare_number_has_no_interval() -> None:
    score = Score.of(np.float32(0.5))
    assert (score.value, score.n, score.low, score.high, score.items) == (0.5, None, None, None, None)
    assert type(score.value) is float
    assert str(score) == "0.5000"


def test_the_interval_is_the_normal_one() -> None:
    score = Score.from_items([1, 0, 1, 1])
    half = 1.959963984540054 * np.std([1, 0, 1, 1], ddof=1) / 2
    assert score.value == 0.75
    assert (score.low, score.high) == pytest.approx((0.75 - half, 0.75 + half))
    assert score.n == 4
    assert str(score).startswith("0.7500 [0.2600, 1.2400] n=4")


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    draws = np.random.default_rng(3).random((2000, 400)) < 0.9
    scores = [Score.from_items(row) for row in draws]
    covered = np.mean([score.low <= 0.9 <= score.high for score in scores])  # type: ignore[operator]
    assert 0.92 < covered < 0.97


def test_one_item_says_nothing_about_its_spread() -> None:
    score = Score.from_items([0.5])
    assert (score.value, score.n, score.low, score.high) == (0.5, 1, None, None)


def test_a_given_value_wins_over_the_mean() -> None:
    score = Score.from_items([0.0, 1.0], value=0.7, hits=[True, False])
    assert score.value == 0.7
    assert score.low is not None
    assert score.high is not None
    assert (score.low + score.high) / 2 == pytest.approx(0.7)
    assert score.hits is not None
    assert score.hits.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("bad", [[], np.zeros((2, 2)), 0.5])
def test_items_are_a_row_of_numbers(bad: object) -> None:
    with pytest.raises(EvaluationError, match="at least one item"):
        Score.from_items(bad)  # type: ignore[arg-type]


@given(items)
def test_value_and_interval_follow_the_items(values: list[float]) -> None:
    score = Score.from_items(values)
    assert score.value == pytest.approx(np.mean(values), abs=1e-6)
    if len(values) > 1:
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.value <= score.high


@given(items, st.booleans())
def test_json_round_trip_is_exact(values: list[float], with_hits: bool) -> None:
    score = Score.from_items(values, hits=[value > 0 for value in values] if with_hits else None)
    again = Score.from_json(json.loads(json.dumps(score.to_json(), allow_nan=False)))
    assert again == score
    assert again.items is not None
    assert np.array_equal(again.items, np.asarray(values))
    assert (again.hits is None) == (not with_hits)


def test_small_items_are_not_rounded_away() -> None:
    score = Score.from_items([1e-9, 3e-9])
    assert Score.from_json(score.to_json()).items.tolist() == [1e-9, 3e-9]  # type: ignore[union-attr]


def test_infinite_bounds_become_null() -> None:
    assert Score(0.5, 1, -math.inf, math.inf).to_json() == {"value": 0.5, "n": 1, "low": None, "high": None}


def test_a_score_that_a_user_builds_is_made_of_plain_numbers() -> None:
    score = Score(np.float32(0.5), items=[1, 0], hits=[1, 0])  # type: ignore[arg-type]
    assert json.loads(json.dumps(score.to_json())) == {
        "value": 0.5,
        "n": None,
        "low": None,
        "high": None,
        "items": [1, 0],
        "hits": [1, 0],
    }


def test_a_partial_score_survives_the_journal() -> None:
    score = Score(
        0.5, 2, items=[1, 0], hits=[1, 0], limits=(0, math.inf), total=10, p=0.004, index=np.array([3, 7])
    )  # type: ignore[arg-type]
    again = Score.from_json(json.loads(json.dumps(score.to_json(), allow_nan=False)))
    assert again == score
    assert again.partial
    assert again.limits == (0.0, math.inf)
    assert again.index is not None
    assert again.index.tolist() == [3, 7]
    assert again.to_json() == score.to_json()
    assert str(again) == "0.5000 n=2 of 10"
    assert not Score.of(0.5).partial
