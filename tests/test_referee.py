"""Referees: what can be watched, and metrics that are not a mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from octune.criterion import Absolute, Relative
from octune.evaluation.metrics import get_metric
from octune.referee import Referee, Standard, is_mean
from octune.score import Score
from octune.statistics.sequential import ALPHA

N = 1200


def referee(baseline: Score, criterion: Any = None, *, shuffled: bool = True) -> Referee:
    count = baseline.n or 0
    return Referee(
        Standard(baseline, criterion or Relative(0.01)),
        np.arange(count),
        np.ones(count, dtype=np.int64),
        shuffled=shuffled,
    )


def test_a_mean_is_told_from_pseudo_values() -> None:
    assert is_mean(Score.from_items([1, 0, 1]))
    assert not is_mean(Score.from_items([1, 0, 1], value=0.7))
    assert not is_mean(Score.of(0.5))


def test_what_can_be_watched() -> None:
    items = np.linspace(0, 1, 200)
    assert referee(Score.from_items(items, limits=(0, 1))).exact
    assert referee(Score.from_items(items, limits=(0, 1)), shuffled=False).possible
    # without limits, random order is all there is
    assert not referee(Score.from_items(items), shuffled=False).possible
    assert referee(Score.from_items(items)).possible
    assert not referee(Score.from_items(items[:10])).possible
    # An error has no upper end, so a higher-is-better one could always be saved by the next item.
    errors = Score.from_items(items, limits=(0, math.inf))
    assert referee(errors, Relative(0.01, higher_is_better=False)).exact
    assert not referee(errors, Relative(0.01)).possible


def test_errors_without_an_upper_limit_are_rejected_early() -> None:
    rng = np.random.default_rng(0)
    before = rng.exponential(1.0, 4000)
    after = before * 1.3
    watching = referee(Score.from_items(before, limits=(0, math.inf)), Relative(0.01, higher_is_better=False))
    assert watching.p(2000, after[:2000]) <= ALPHA
    assert watching.p(2000, before[:2000]) == 1.0


def test_rounding_is_forgiven_as_in_the_verdict() -> None:
    baseline, after = Score.from_items(np.ones(200), limits=(0, 1)), np.ones(200)
    after[:100] -= 1e-12
    assert Relative(0.0).judge(baseline, Score.from_items(after)).passed
    assert referee(baseline, Relative(0.0)).p(100, after[:100]) == 1.0
    assert referee(baseline, Relative(0.0)).p(100, after[:100] - 1e-6) == 0.0


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("criterion", [Relative, Absolute])
@pytest.mark.parametrize("extra", [-1e-3, -1e-12, 0.0, 1e-12, 1e-3])
def test_a_referee_draws_the_line_where_the_verdict_does(criterion: Any, higher: bool, extra: float) -> None:
    """Every item loses what is allowed, and a little more or less; no item could be better. A referee stops
    exactly those candidates that the verdict fails.
    """
    rule = criterion(0.1, higher_is_better=higher)
    value, loss = 0.7, rule.allowed(0.7) * (1 + extra)
    after = np.full(200, value - loss if higher else value + loss)
    verdict = rule.judge(Score.from_items(np.full(200, value)), Score.from_items(after))
    watching = referee(Score.from_items(np.full(200, value), limits=(after[0], after[0])), rule)
    assert verdict.passed == (extra < 1e-6)
    assert (watching.p(199, after[:199]) == 0.0) == (not verdict.passed)


def test_items_outside_their_limits_end_all_certainty() -> None:
    watching = referee(Score.from_items(np.ones(200), limits=(0, 1)))
    assert watching.p(100, np.full(100, -3.0)) == 1.0
    assert not watching.exact
    assert watching.p(150, np.zeros(150)) == 1.0


def test_looks_are_rare() -> None:
    watching = referee(Score.from_items(np.ones(N), limits=(0, 1)))
    looks = [
        seen for seen in range(1, N + 1) if watching.due(seen) and watching.p(seen, np.ones(seen)) == 1.0
    ]
    assert len(looks) < 50
    assert N not in looks  # with all of the data there is nothing left to stop
    approximate = referee(Score.from_items(np.ones(N), value=0.9))
    seen = [
        count
        for count in range(1, N + 1)
        if approximate.due(count) and approximate.p(count, np.ones(count)) == 1.0
    ]
    assert seen == [300, 480, 780]


def answers(rng: np.random.Generator, metric: str) -> tuple[Any, Any, Any]:
    """Labels, and what fp32 and a candidate say."""
    if metric in ("f1", "mcc", "acc_and_f1"):
        labels = (rng.random(N) < 0.3).astype(int)
        before = np.where(rng.random(N) < 0.1, 1 - labels, labels)
        return labels, before, np.where(rng.random(N) < 0.05, 1 - before, before)
    labels = rng.normal(size=N)
    before = labels + 0.5 * rng.normal(size=N)
    return labels, before, before + 0.2 * rng.standard_t(4, size=N)


@pytest.mark.parametrize("name", ["f1", "mcc", "acc_and_f1", "pearson", "spearmanr", "corr", "rmse"])
def test_what_just_passes_by_a_metric_that_is_no_mean_is_hardly_ever_rejected(name: str) -> None:
    rng = np.random.default_rng(11)
    metric, wrong, runs = get_metric(name), 0, 0
    for _ in range(3):
        labels, before, after = answers(rng, name)
        baseline, full = metric.score(before, labels), metric.score(after, labels)
        higher = metric.higher_is_better
        loss = baseline.value - full.value if higher else full.value - baseline.value
        for _ in range(40):
            order = rng.permutation(N)
            watching = Referee(
                Standard(baseline, Absolute(loss + 1e-9, higher)),
                order,
                np.ones(N, dtype=np.int64),
                shuffled=True,
            )
            runs += 1
            for seen in (300, 480, 780):
                seen_items = metric.score(after[order[:seen]], labels[order[:seen]]).items
                assert seen_items is not None
                if watching.p(seen, seen_items) <= ALPHA:
                    wrong += 1
                    break
    assert wrong / runs <= ALPHA + 3 * math.sqrt(ALPHA / runs)


@pytest.mark.parametrize("name", ["f1", "mcc", "spearmanr"])
def test_a_ruined_candidate_is_rejected_by_a_metric_that_is_no_mean(name: str) -> None:
    rng = np.random.default_rng(12)
    metric = get_metric(name)
    labels, before, _ = answers(rng, name)
    after = rng.permutation(before)
    watching = referee(metric.score(before, labels))
    items = metric.score(after[:300], labels[:300]).items
    assert items is not None
    assert watching.due(300)
    assert watching.p(300, items) <= ALPHA
