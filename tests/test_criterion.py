"""Criteria: what passes, what is undecidable, and how the answers flipped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octune.criterion import Absolute, Criterion, Relative, Verdict
from octune.errors import ConfigError
from octune.score import Score

values = st.floats(-1e3, 1e3, allow_nan=False)
tolerances = st.floats(-0.5, 0.5, allow_nan=False)


def passes(criterion: Criterion, baseline: float, value: float) -> bool:
    return criterion.judge(Score.of(baseline), Score.of(value)).passed


@pytest.mark.parametrize(
    ("criterion", "baseline", "value", "passed"),
    [
        (Relative(0.01), 0.9, 0.891, True),  # exactly the limit, but for the last bit
        (Relative(0.01), 0.9, 0.8909, False),
        (Relative(0.01), 0.9, 0.95, True),
        (Relative(0.0), 0.9, 0.9, True),
        (Relative(0.0), 0.9, 0.8999, False),
        (Relative(-0.01), 0.9, 0.9, False),  # demands a gain
        (Relative(-0.01), 0.9, 0.91, True),
        (Relative(0.01), -2.0, -2.02, True),  # a share of the size, whatever the sign
        (Relative(0.01), -2.0, -2.03, False),
        (Relative(0.01), 0.0, 0.0, True),
        (Relative(0.01), 0.0, -1e-6, False),
        (Relative(0.05, higher_is_better=False), 2.0, 2.1, True),
        (Relative(0.05, higher_is_better=False), 2.0, 2.11, False),
        (Relative(0.05, higher_is_better=False), 2.0, 1.0, True),
        (Relative(0.01), 1e-10, 0.5e-10, False),  # tiny scores are judged as strictly as large ones
        (Relative(0.01, higher_is_better=False), 1e-10, 9e-10, False),
        (Absolute(0.5), 90.0, 89.5, True),
        (Absolute(0.5), 90.0, 89.4, False),
        (Absolute(1), 90.0, 89.0, True),
        (Absolute(0.5, higher_is_better=False), 3.0, 3.5, True),
        (Absolute(0.5, higher_is_better=False), 3.0, 3.6, False),
        (Absolute(-1.0), 90.0, 90.5, False),
    ],
)
def test_what_passes(criterion: Criterion, baseline: float, value: float, passed: bool) -> None:
    assert passes(criterion, baseline, value) is passed


@given(tolerances, values, values)
def test_a_better_score_never_does_worse(tolerance: float, baseline: float, value: float) -> None:
    for criterion in (Relative(tolerance), Absolute(tolerance)):
        if passes(criterion, baseline, value):
            assert passes(criterion, baseline, value + 1.0)


@given(tolerances, values, values)
def test_direction_is_a_mirror(tolerance: float, baseline: float, value: float) -> None:
    for kind in (Relative, Absolute):
        assert passes(kind(tolerance), baseline, value) == passes(kind(tolerance, higher_is_better=False), -baseline, -value)


@given(st.floats(0, 0.5), values)
def test_the_baseline_meets_any_criterion_that_demands_no_gain(tolerance: float, baseline: float) -> None:
    assert passes(Relative(tolerance), baseline, baseline)
    assert passes(Absolute(tolerance), baseline, baseline)


@pytest.mark.parametrize("tolerance", ["1%", None, True, math.nan, math.inf])
def test_a_tolerance_is_a_finite_number(tolerance: object) -> None:
    with pytest.raises(ConfigError, match="must be a finite number"):
        Relative(tolerance)  # type: ignore[arg-type]


def test_criteria_say_what_they_mean() -> None:
    assert str(Relative(0.01)) == "at most 1.00% of the fp32 score lost"
    assert str(Absolute(0.5)) == "at most 0.5 lost against the fp32 score"
    assert Relative(0.01).to_json() == {"relative": 0.01, "higher_is_better": True}
    assert Absolute(0.5, higher_is_better=False).to_json() == {"absolute": 0.5, "higher_is_better": False}


# -- verdicts with items ----------------------------------------------------------------------------------------------


def hits(*right: int, n: int) -> Score:
    array = np.zeros(n)
    array[list(right)] = 1
    return Score.from_items(array, hits=array)


def test_items_are_paired() -> None:
    # Two models that agree on 990 of 1000 items are compared on the ten where they differ, not on two noisy means.
    base = np.arange(1000) % 10 != 0
    other = base.copy()
    other[:20:2] = ~other[:20:2]
    verdict = Relative(0.01).judge(Score.from_items(base, hits=base), Score.from_items(other, hits=other))
    lost, gained = int(np.sum(base & ~other)), int(np.sum(~base & other))
    assert (verdict.lost, verdict.gained, verdict.n) == (lost, gained, 1000)
    assert verdict.drop == pytest.approx((lost - gained) / 1000)
    assert verdict.low is not None
    assert verdict.high is not None
    half = 1.959963984540054 * np.std(base.astype(float) - other, ddof=1) / math.sqrt(1000)
    # Ten flips are few: wider than the normal interval, but not by much.
    assert half < verdict.high - verdict.drop < 2 * half
    assert half < verdict.drop - verdict.low < 2 * half
    assert f"{lost} answers lost and {gained} gained of 1000" in str(verdict)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=50), st.booleans())
def test_the_interval_holds_the_drop(pairs: list[tuple[float, float]], higher: bool) -> None:
    before, after = Score.from_items([a for a, _ in pairs]), Score.from_items([b for _, b in pairs])
    verdict = Relative(0.01, higher_is_better=higher).judge(before, after)
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low <= verdict.drop <= verdict.high
    mirrored = Relative(0.01, higher_is_better=not higher).judge(before, after)
    assert mirrored.drop == pytest.approx(-verdict.drop)


def test_no_flip_in_few_items_is_not_certain() -> None:
    verdict = Absolute(0.01).judge(hits(1, 2, n=10), hits(1, 2, n=10))
    assert verdict.passed
    assert verdict.undecidable
    assert (verdict.drop, verdict.lost, verdict.gained) == (0.0, 0, 0)
    assert verdict.high == pytest.approx(1 - 0.025 ** (1 / 10))  # Clopper and Pearson's limit for none of ten


def test_no_flip_in_many_items_is_certain() -> None:
    many = range(1, 1000)
    verdict = Relative(0.01).judge(hits(*many, n=1000), hits(*many, n=1000))
    assert verdict.passed
    assert not verdict.undecidable
    assert verdict.needed is None


def test_a_few_flips_in_few_items_are_undecidable() -> None:
    base = np.ones(277)
    after = base.copy()
    after[:2] = 0  # 2 of 277 is 0.7 %: passes 1 %, but luck could have decided
    verdict = Relative(0.01).judge(Score.from_items(base, hits=base), Score.from_items(after, hits=after))
    assert verdict.passed
    assert verdict.undecidable
    assert verdict.needed is not None
    assert verdict.needed > 277
    assert f"undecidable with this many items (about {verdict.needed} would decide)" in str(verdict)


@given(st.integers(3, 60), st.data())
def test_items_needed_is_more_than_there_are(n: int, data: st.DataObject) -> None:
    before = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    after = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    verdict = Relative(0.01).judge(Score.from_items(before, hits=before), Score.from_items(after, hits=after))
    assume(verdict.undecidable)
    assert verdict.needed is None or verdict.needed >= n
    assert str(verdict)


def test_a_clear_failure_is_decidable() -> None:
    n = 2000
    base, after = np.ones(n), np.ones(n)
    after[:400] = 0
    verdict = Relative(0.01).judge(Score.from_items(base), Score.from_items(after))
    assert not verdict.passed
    assert not verdict.undecidable
    assert verdict.lost is None


def test_one_item_can_decide_nothing() -> None:
    verdict = Relative(0.01).judge(Score.from_items([1.0]), Score.from_items([1.0]))
    assert verdict.passed
    assert verdict.undecidable
    assert verdict.needed is None
    assert "undecidable" in str(verdict)


def test_items_that_cannot_be_paired_give_no_interval() -> None:
    verdict = Relative(0.01).judge(Score.from_items([1, 1, 0]), Score.from_items([1, 1]))
    assert (verdict.low, verdict.high, verdict.lost) == (None, None, None)
    assert verdict.n == 2
    assert not Relative(0.01).judge(Score.of(0.9), Score.from_items([1, 0])).undecidable


def test_a_black_box_verdict_reads_well() -> None:
    verdict = Relative(0.01).judge(Score.of(0.9), Score.of(0.895))
    assert str(verdict) == "pass: drop +0.0050 of 0.0090 allowed"
    assert Verdict("fail", 0.02, 0.01).needed is None
