"""Margins of a mean of paired losses: exact where nothing flipped, normal where everything changes, and
cautious in between.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from octune.statistics.intervals import _count_limits, margins

losses = st.lists(
    st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 6)), min_size=2, max_size=60
).map(np.array)
ONE = (1.0, 1.0)


def test_without_any_loss_it_is_clopper_and_pearsons_limit() -> None:
    found = margins(np.zeros(100), 0.05, ONE)
    assert found.up == pytest.approx(1 - 0.05 ** (1 / 100))
    assert found.down == found.up == found.unseen_up == found.unseen_down


def test_losses_alone_are_bounded_as_a_share_is() -> None:
    values = np.zeros(200)
    values[:7] = 1
    upper = stats.binomtest(7, 200, alternative="less").proportion_ci(0.95).high
    lower = stats.binomtest(7, 200, alternative="greater").proportion_ci(0.95).low
    found = margins(values, 0.05, ONE)
    # Gains not seen yet may lower it, but not by the full margin of both.
    assert 7 / 200 + found.up == pytest.approx(upper)
    assert 7 / 200 - lower < found.down < 7 / 200 - lower + 1 - 0.05 ** (1 / 200)


def test_where_all_items_change_it_is_near_the_normal_interval() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 20_000)
    normal = 1.6449 * values.std() / np.sqrt(values.size)
    found = margins(values, 0.05, ONE)
    assert normal < found.up < 1.3 * normal
    assert normal < found.down < 1.3 * normal


def test_many_limits_are_interpolated_well() -> None:
    exact_low = stats.beta.ppf(0.05, np.arange(1, 2001), 5000 - np.arange(1, 2001) + 1)
    exact_high = stats.beta.isf(0.05, np.arange(2001) + 1, 5000 - np.arange(2001))
    low, high = _count_limits(5000, 2000, 0.05)
    assert np.abs(low[1:] - exact_low).max() < 1e-6
    assert np.abs(high - exact_high).max() < 1e-6
    assert _count_limits(5, 5, 0.05)[1][-1] == 1.0


@given(losses)
def test_margins_are_a_mirror(values: np.ndarray) -> None:
    found, mirrored = margins(values, 0.05, ONE), margins(-values, 0.05, ONE)
    assert (found.down, found.up) == pytest.approx((mirrored.up, mirrored.down))
    assert min(found.up, found.down) >= 0  # where every item loses all it can, the mean cannot be higher
    assert max(found.up, found.down) > 0


@given(losses, st.floats(0.001, 0.2))
def test_more_confidence_is_wider(values: np.ndarray, tail: float) -> None:
    assert margins(values, tail / 2, ONE).up >= margins(values, tail, ONE).up - 1e-12


@given(losses, st.floats(0.1, 100))
def test_units_do_not_matter(values: np.ndarray, scale: float) -> None:
    assert margins(scale * values, 0.05, (scale, scale)).up == pytest.approx(
        scale * margins(values, 0.05, ONE).up
    )


def test_losses_next_to_nothing_do_no_harm() -> None:
    assert margins(np.array([1e-195, -1.0]), 0.05, ONE).up < 2
    assert margins(np.array([1e-310, 0.0, 0.0]), 0.05, ONE).up < 2


def test_what_an_item_may_lose_has_a_margin_of_its_own() -> None:
    rng = np.random.default_rng(1)
    credit = rng.uniform(0, 2, 500)
    found = margins(np.zeros(500), 0.05, ONE, credit)
    assert found.up > margins(np.zeros(500), 0.05, ONE).up
    assert margins(np.zeros(500), 0.05, ONE, np.full(500, 0.5)).up == pytest.approx(
        margins(np.zeros(500), 0.05, ONE).up
    )
