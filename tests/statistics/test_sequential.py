"""Early rejection: never wrong more often than it may be, whatever the data; and early."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octune.criterion import Relative
from octune.referee import Referee, Standard
from octune.score import Score
from octune.statistics.sequential import ALPHA, chance_of_passing
from tests.evaluation.simulated import Floats, squad_like

SQUAD = 10_570
numbers = st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 3))


def first_rejection(losses: Floats, floors: Floats, allowed: float, order: Floats) -> int:
    """How many items it takes to reject, looked at after every twentieth of them; one more than all if
    never.
    """
    n = losses.size
    for seen in np.linspace(n / 20, n, 20).astype(int)[:-1]:
        if chance_of_passing(losses[order[:seen]] - allowed, floors[order] - allowed) <= ALPHA:
            return int(seen)
    return n + 1


def rejections(before: Floats, after: Floats, limit: float, orders: int, rng: np.random.Generator) -> Floats:
    losses, floors = before - after, before - 100.0
    return np.array(
        [first_rejection(losses, floors, limit, rng.permutation(before.size)) for _ in range(orders)]
    )


@pytest.mark.parametrize("churn", [0.02, 0.05, 0.1])
def test_a_drop_of_3_percent_is_rejected_after_about_a_tenth_of_squad(churn: float) -> None:
    rng = np.random.default_rng(5)
    before, after = squad_like(rng, SQUAD, 0.03, churn)
    assert (before - after).mean() == pytest.approx(0.03 * before.mean(), rel=0.01)
    found = rejections(before, after, 0.01 * before.mean(), 30, rng)
    assert np.mean(found) / SQUAD < 0.16
    assert np.median(found) / SQUAD <= 0.15
    assert found.max() <= SQUAD  # every time


def test_a_drop_of_8_percent_is_rejected_at_the_first_look() -> None:
    rng = np.random.default_rng(6)
    before, after = squad_like(rng, SQUAD, 0.08)
    assert (rejections(before, after, 0.01 * before.mean(), 20, rng) <= SQUAD / 20 + 1).all()


@pytest.mark.parametrize(("drop", "most"), [(0.0, 0.0), (0.01, ALPHA)])
def test_what_passes_is_hardly_ever_rejected(drop: float, most: float) -> None:
    # At a drop of just what is allowed the risk is the greatest; without a drop there is none to speak of.
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(4):
        before, after = squad_like(rng, 2000, drop)
        allowed = max((before - after).mean(), 0.01 * before.mean())
        wrong += int(np.sum(rejections(before, after, allowed, 250, rng) <= 2000))
    assert wrong / 1000 <= most + 3 * np.sqrt(most / 1000)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(numbers, st.floats(0, 1)), min_size=2, max_size=6), st.sampled_from([0.05, 0.2, 0.5])
)
def test_over_all_orders_the_risk_is_what_it_says(units: list[tuple[float, float]], alpha: float) -> None:
    """Every order of a small set of units that passes: the share of orders in which some look rejects is at
    most alpha.
    """
    excess = np.array([value for value, _ in units])
    excess -= max(float(excess.mean()), 0.0)
    floors = excess - np.array([room for _, room in units])
    orders = list(permutations(range(len(units))))
    rejected = sum(
        any(
            chance_of_passing(excess[list(order[:seen])], floors[list(order)]) <= alpha
            for seen in range(1, len(units) + 1)
        )
        for order in orders
    )
    assert rejected <= alpha * len(orders)


@given(st.lists(st.tuples(numbers, st.floats(0, 1)), min_size=1, max_size=30), st.data())
def test_zero_means_that_nothing_can_save_it(units: list[tuple[float, float]], data: st.DataObject) -> None:
    excess = np.array([value for value, _ in units])
    floors = excess - np.array([room for _, room in units])
    seen = data.draw(st.integers(0, len(units)))
    best = excess[:seen].sum() + floors[seen:].sum()
    for shuffled in (True, False):
        p = chance_of_passing(excess[:seen], floors, shuffled=shuffled)
        assert 0 <= p <= 1
        if p == 0:
            assert best > 0
        if best > 1e-6:
            assert p == 0
        elif best <= 0 and not shuffled:
            assert p == 1  # without random order nothing else is known


@given(st.lists(numbers, min_size=2, max_size=40))
def test_the_chance_never_grows(values: list[float]) -> None:
    excess, floors = np.array(values), np.full(len(values), -1.0)
    chances = [chance_of_passing(excess[:seen], floors) for seen in range(len(values))]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(chances))


@given(st.lists(numbers, min_size=3, max_size=30), st.floats(0.01, 1000))
def test_units_do_not_matter(values: list[float], scale: float) -> None:
    excess, floors = np.array(values), np.full(len(values), -1.0)
    seen = len(values) - 1
    p = chance_of_passing(excess[:seen], floors)
    assume(p > 0)
    assert chance_of_passing(scale * excess[:seen], scale * floors) == pytest.approx(p, rel=1e-3)


# -- batches as units ----------------------------------------------------------------------------------------


def batch_runs(before: Floats, after: Floats, size: int, tolerance: float, orders: int, seed: int) -> Floats:
    """At which item a referee that sees whole batches in random order rejects; one more than all if never."""
    rng, n = np.random.default_rng(seed), before.size
    standard = Standard(Score.from_items(before, limits=(0, 1)), Relative(tolerance))
    found = []
    for _ in range(orders):
        numbers = rng.permutation(n // size)
        order = np.concatenate([np.arange(number * size, (number + 1) * size) for number in numbers])
        referee = Referee(standard, order, np.full(numbers.size, size), shuffled=True)
        stop = n + 1
        for seen in range(size, n, size):
            if referee.due(seen) and referee.p(seen, after[order[:seen]]) <= ALPHA:
                stop = seen
                break
        found.append(stop)
    return np.array(found)


def sorted_by_class(n: int, lost: float) -> tuple[Floats, Floats]:
    """The worst order: all that is lost lies side by side, as in data sorted by class."""
    before = np.ones(n)
    before[:: n // 40] = 0
    after = before.copy()
    after[n // 2 : n // 2 + round(lost * before.sum())] = 0
    return before, after


def test_sorted_data_is_not_rejected_by_the_bad_luck_of_its_batches() -> None:
    before, after = sorted_by_class(2000, 0.01)
    tolerance = (before.sum() - after.sum()) / before.sum() + 1e-12
    assert np.mean(batch_runs(before, after, 20, tolerance, 500, 1) <= 2000) <= ALPHA + 3 * np.sqrt(
        ALPHA / 500
    )


def test_a_bad_candidate_is_rejected_in_batches_too() -> None:
    rng = np.random.default_rng(3)
    before = (rng.random(4000) < 0.95).astype(float)
    after = before * (rng.random(4000) > 0.1)
    assert np.median(batch_runs(before, after, 20, 0.01, 30, 2)) < 1000


def test_data_in_a_fixed_order_is_rejected_only_when_nothing_can_save_it() -> None:
    before, after = np.ones(1000), np.ones(1000)
    after[:500] = 0
    standard = Standard(Score.from_items(before, limits=(0, 1)), Relative(0.01))
    referee = Referee(standard, np.arange(1000), np.ones(1000, dtype=np.int64), shuffled=False)
    assert referee.possible
    assert referee.p(10, after[:10]) == 1.0  # the others may all be right
    assert referee.p(11, after[:11]) == 0.0
