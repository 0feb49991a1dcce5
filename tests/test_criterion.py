"""Criteria: what passes, what is undecidable, and how the answers flipped."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octune.config import parse_config
from octune.criterion import BELOW_ONE, Absolute, Criterion, Relative, Verdict
from octune.errors import ConfigError
from octune.evaluation.metrics import get_metric
from octune.score import Score
from tests.evaluation.simulated import flips

values = st.floats(-1e3, 1e3, allow_nan=False)
tolerances = st.floats(-0.5, 0.5, allow_nan=False)


def passes(criterion: Criterion, baseline: float, value: float) -> bool:
    return criterion.judge(Score.of(baseline), Score.of(value)).passed


@pytest.mark.parametrize(
    ("criterion", "baseline", "value", "passed"),
    [
        (Relative(0.01), 0.9, 0.891, True),  # exactly the limit, except for the last bit
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
        assert passes(kind(tolerance), baseline, value) == passes(
            kind(tolerance, higher_is_better=False), -baseline, -value
        )


@given(st.floats(0, 0.5), values)
def test_the_baseline_meets_any_criterion_that_demands_no_gain(tolerance: float, baseline: float) -> None:
    assert passes(Relative(tolerance), baseline, baseline)
    assert passes(Absolute(tolerance), baseline, baseline)


@pytest.mark.parametrize("tolerance", ["1%", None, True, math.nan, math.inf])
def test_a_tolerance_is_a_finite_number(tolerance: object) -> None:
    with pytest.raises(ConfigError, match="must be a finite number"):
        Relative(tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize("tolerance", [1, 1.0, 2.0, 100])
def test_a_relative_loss_of_everything_is_refused_as_in_a_file(tolerance: float) -> None:
    wanted = re.escape(BELOW_ONE)
    with pytest.raises(ConfigError, match=wanted) as caught:
        Relative(tolerance)
    assert f"Did you mean Relative({tolerance / 100:g})?" in str(caught.value)
    with pytest.raises(ConfigError, match=wanted):
        parse_config({"criterion": {"relative": tolerance}})
    assert Absolute(tolerance).tolerance == tolerance


@pytest.mark.parametrize("written", [0.02, "2%", {"relative": "2%"}, {"relative": 0.02}, Relative(0.02)])
def test_a_file_takes_a_criterion_in_any_form(written: object) -> None:
    assert parse_config({"criterion": written}).criterion.relative == 0.02


def test_criteria_say_what_they_mean() -> None:
    assert str(Relative(0.01)) == "at most 1.00% of the fp32 score lost"
    assert str(Absolute(0.5)) == "at most 0.5 lost against the fp32 score"
    assert Relative(0.01).to_json() == {"relative": 0.01, "higher_is_better": True}
    assert Absolute(0.5, higher_is_better=False).to_json() == {"absolute": 0.5, "higher_is_better": False}


# -- verdicts with items -------------------------------------------------------------------------------------


def hits(*right: int, n: int) -> Score:
    array = np.zeros(n)
    array[list(right)] = 1
    return Score.from_items(array, hits=array)


def test_items_are_paired() -> None:
    # Two models that agree on 990 of 1000 items are compared on the ten where they differ, not on two noisy
    # means.
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


# -- with a confidence ---------------------------------------------------------------------------------------


def paired(before: object, after: object, limits: tuple[float, float] | None = None) -> tuple[Score, Score]:
    return Score.from_items(before, limits=limits), Score.from_items(after, limits=limits)  # type: ignore[arg-type]


def test_confidence_demands_that_the_bound_is_allowed() -> None:
    base = np.ones(277)
    after = base.copy()
    after[:2] = 0
    scores = paired(base, after, (0, 1))
    assert Relative(0.01).judge(*scores).outcome == "pass"
    verdict = Relative(0.01, confidence=0.95).judge(*scores)
    assert verdict.outcome == "undecidable"
    assert not verdict.passed
    assert verdict.bound is not None
    assert verdict.bound > verdict.allowed
    assert "with 95% confidence" in str(verdict)
    assert Relative(0.05, confidence=0.95).judge(*scores).passed
    after[:40] = 0
    assert Relative(0.01, confidence=0.95).judge(*paired(base, after, (0, 1))).outcome == "fail"


def test_at_a_confidence_of_a_half_the_drop_itself_decides() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(5000)
    after = before - rng.normal(0.004, 0.01, 5000)
    assert Absolute(0.005, confidence=0.5).judge(*paired(before, after)).passed
    assert Absolute(0.003, confidence=0.5).judge(*paired(before, after)).outcome != "pass"


def test_without_items_a_confidence_cannot_be_had() -> None:
    verdict = Relative(0.01, confidence=0.95).judge(Score.of(0.9), Score.of(0.9))
    assert verdict.outcome == "undecidable"
    assert "undecidable without one score per item" in str(verdict)


@pytest.mark.parametrize("confidence", [0, 0.3, 1, 95, True, "high", math.nan])
def test_a_confidence_is_at_least_a_half_and_below_one(confidence: object) -> None:
    with pytest.raises(ConfigError, match=r"must be from 0.5 to below 1, such as 0.95"):
        Relative(0.01, confidence=confidence)  # type: ignore[arg-type]


def test_criteria_with_a_confidence_say_so() -> None:
    assert str(Relative(0.01, confidence=0.95)) == "at most 1.00% of the fp32 score lost, with 95% confidence"
    assert Absolute(1, confidence=0.9).to_json() == {
        "absolute": 1,
        "higher_is_better": True,
        "confidence": 0.9,
    }


def test_needed_is_how_many_decide() -> None:
    """With as many items as it names, and the same share of flips, it is decided: give or take a few."""
    needed = Relative(0.01, confidence=0.95).judge(*paired(np.ones(100), np.ones(100), (0, 1))).needed
    assert needed is not None
    assert 280 < needed < 320  # none lost in 299 items bounds the share by 1 %
    for n, outcome in ((round(needed * 0.9), "undecidable"), (round(needed * 1.1), "pass")):
        assert (
            Relative(0.01, confidence=0.95).judge(*paired(np.ones(n), np.ones(n), (0, 1))).outcome == outcome
        )
    after = np.ones(1000)
    after[:5] = 0
    needed = Relative(0.01, confidence=0.95).judge(*paired(np.ones(1000), after, (0, 1))).needed
    assert needed is not None
    for factor, outcome in ((0.7, "undecidable"), (1.4, "pass")):
        n = round(needed * factor)
        after = np.ones(n)
        after[: round(n * 0.005)] = 0
        assert Relative(0.01, confidence=0.95).judge(*paired(np.ones(n), after, (0, 1))).outcome == outcome


def test_at_the_limit_itself_no_number_of_items_decides() -> None:
    before, after = np.tile([1.0, 0.0], 50), np.tile([1.0, 0.0], 50)
    after[0], after[1] = 0.0, 1.0
    for drop in (0.0, 1e-300, 1e-12):
        assert Absolute(drop).judge(*paired(before, after, (0, 1))).needed is None


# False passes, by simulation: the candidate truly loses just what is allowed, or a hair more, so every pass
# is a false one.
RARE = {
    "none is ever gained, few are lost": (0.9, 0.009, 0.0),
    "few flips": (0.9, 0.014, 0.005),
    "some flips": (0.9, 0.03, 0.021),
    "many flips": (0.9, 0.109, 0.1),
    "fp32 is bad at it": (0.4, 0.024, 0.02),
    "fp32 is always right": (1.0, 0.01, 0.0),
}
RUNS = 400


def most(runs: int) -> float:
    return 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("n", [50, 300, 3000])
@pytest.mark.parametrize("case", RARE)
def test_false_passes_with_flipped_answers(case: str, n: int) -> None:
    rng = np.random.default_rng(n)
    criterion = Relative(0.01, confidence=0.95)
    right, lost, gained = RARE[case]
    assert lost - gained == pytest.approx(0.01 * right)
    passed = sum(
        criterion.judge(*paired(*flips(rng, n, right, lost, gained), (0, 1))).passed for _ in range(RUNS)
    )
    assert passed / RUNS <= most(RUNS)


def test_the_normal_interval_would_pass_them() -> None:
    """Why there is more to it than a mean and its spread: these are the same draws, judged by the normal
    bound.
    """
    rng = np.random.default_rng(50)
    wrong = 0
    for _ in range(RUNS):
        before, after = flips(rng, 50, 0.9, 0.009, 0.0)
        excess = before - after - 0.01 * before
        wrong += bool(excess.mean() + 1.645 * excess.std(ddof=1) / math.sqrt(50) <= 0)
    assert wrong / RUNS > 0.5


@pytest.mark.parametrize("n", [30, 300, 1000])
@pytest.mark.parametrize("kind", ["squared errors", "rare large errors", "overlaps", "skewed"])
def test_false_passes_with_continuous_items(kind: str, n: int) -> None:
    rng, passed, runs = np.random.default_rng(n), 0, 250
    for _ in range(runs):
        errors = rng.exponential(1.0, n)
        if kind == "squared errors":
            before, after, limits, higher = (
                errors,
                errors * (1.02 + rng.normal(0, 0.3, n)),
                (0, math.inf),
                False,
            )
        elif kind == "rare large errors":
            before, after, limits, higher = (
                errors,
                errors + (rng.random(n) < 0.02) * rng.exponential(1.0, n),
                (0, math.inf),
                False,
            )
        elif kind == "skewed":
            before, limits, higher = errors**2, (0, math.inf), False
            after = before * (1 + 0.01 * rng.exponential(1.0, n) ** 2)
        else:
            before, limits, higher = rng.beta(4, 1, n), (0, 1), True
            after = before * (1 - (rng.random(n) < 0.04) * rng.random(n))
        judged = Relative(0.02, higher, confidence=0.95).judge(*paired(before, after, limits))  # type: ignore[arg-type]
        passed += judged.passed
    assert passed / runs <= most(runs)


@pytest.mark.parametrize("name", ["f1", "mcc", "pearson"])
def test_false_passes_with_a_metric_that_is_not_a_mean(name: str) -> None:
    rng, n, runs = np.random.default_rng(8), 300, 200
    metric = get_metric(name)

    def draw(count: int) -> tuple[Score, Score]:
        if name == "pearson":
            labels = rng.normal(size=count)
            before = labels + 0.5 * rng.normal(size=count)
            after = before + 0.25 * rng.normal(size=count)
        else:
            labels = (rng.random(count) < 0.3).astype(int)
            before = np.where(rng.random(count) < 0.05, 1 - labels, labels)
            after = np.where(rng.random(count) < 0.01, 1 - before, before)
        return metric.score(before, labels), metric.score(after, labels)  # type: ignore[arg-type]

    before, after = draw(200_000)  # practically the truth
    criterion = Absolute(before.value - after.value, confidence=0.95)
    assert sum(criterion.judge(*draw(n)).passed for _ in range(runs)) / runs <= most(runs)


def test_certain_losses_still_pass_where_they_are_allowed() -> None:
    """Caution has its price, but it must not refuse everything: half of what is allowed, on as many items as
    SQuAD has, passes.
    """
    rng = np.random.default_rng(4)
    criterion = Relative(0.01, confidence=0.95)
    passed = [
        criterion.judge(*paired(*flips(rng, 10_570, 0.88, 0.0144, 0.01), (0, 1))).passed for _ in range(100)
    ]
    assert np.mean(passed) > 0.8


# -- stopped early -------------------------------------------------------------------------------------------


def test_a_score_that_was_stopped_early_fails() -> None:
    before = Score.from_items([1, 0, 1, 1, 1, 0], hits=[1, 0, 1, 1, 1, 0], limits=(0, 1))
    part = replace(Score.from_items([0, 1, 0], hits=[0, 1, 0]), index=np.array([0, 1, 4]), total=6, p=0.0042)
    verdict = Relative(0.01).judge(before, part)
    assert verdict.outcome == "fail"
    assert verdict.drop == pytest.approx(1 / 3)  # against the same three items of fp32
    assert (verdict.lost, verdict.gained, verdict.n) == (2, 1, 3)
    assert not verdict.undecidable
    assert verdict.stopped == "stopped after 3 of 6 items: fails for certain (p < 0.0042)"
    assert str(verdict).endswith(verdict.stopped)
    certain = Relative(0.01, confidence=0.95).judge(before, replace(part, p=0.0))
    assert certain.outcome == "fail"
    assert certain.stopped == "stopped after 3 of 6 items: fails whatever the others say"
