"""Results: the front, and trials as plain data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octune.criterion import Relative
from octune.plan import Plan, Scheme
from octune.result import Result, Trial
from octune.score import Score


def trial(score: float | None, latency: float | None, form: str = "eager") -> Trial:
    return Trial(Plan(), form=form, score=None if score is None else Score.of(score), latency_ms=latency)


def result(*trials: Trial, higher: bool = True) -> Result:
    baseline = trial(0.9, 10.0, "fp32")
    return Result(True, None, Plan(), baseline, baseline, trials, "", Relative(0.01, higher_is_better=higher))


@pytest.mark.parametrize(
    ("points", "higher", "expected"),
    [
        ([], True, [(0.9, 10.0)]),
        ([(0.88, 4.0), (0.85, 5.0), (0.89, 6.0)], True, [(0.88, 4.0), (0.89, 6.0), (0.9, 10.0)]),  # slower and worse is out
        ([(0.95, 4.0)], True, [(0.95, 4.0)]),  # better and faster: fp32 itself is out
        ([(0.88, 4.0), (0.89, 4.0)], True, [(0.89, 4.0), (0.9, 10.0)]),  # equally fast: the better one
        ([(0.9, 4.0)], True, [(0.9, 4.0)]),
        ([(1.2, 4.0), (0.95, 6.0), (1.0, 7.0)], False, [(1.2, 4.0), (0.95, 6.0), (0.9, 10.0)]),  # lower is better
        ([(None, 4.0), (0.89, None)], True, [(0.9, 10.0)]),  # what was not scored or not timed is not compared
    ],
)
def test_front(points: list[tuple[float | None, float | None]], higher: bool, expected: list[tuple[float, float]]) -> None:
    found = result(*(trial(*point) for point in points), higher=higher).front
    assert [(t.score.value, t.latency_ms) for t in found if t.score] == expected


def test_a_trial_that_was_stopped_early_is_not_on_the_front() -> None:
    part = replace(trial(0.95, 1.0), score=Score(0.95, 10, total=100))
    assert not part.complete
    assert result(part).front == result().front


def test_rivals_are_the_plans_that_were_compared_on_all_data() -> None:
    plans = [Plan({"a": Scheme.int8()}), Plan({"a": Scheme.int8(), "b": Scheme.int8()})]
    one, other = (Trial(plan, score=Score.of(0.9)) for plan in plans)
    compiled = replace(one, form="compiled")
    stopped = replace(other, score=Score(0.5, 3, total=9))
    assert result(one).rivals == 1
    assert result(one, compiled, stopped).rivals == 1
    assert result(one, other).rivals == 2


def test_the_story_names_the_choice_among_many() -> None:
    plans = [Plan({"a": Scheme.int8()}), Plan({"a": Scheme.int8(), "b": Scheme.int8()})]
    criterion = Relative(0.01)
    one, other = (Trial(plan, score=Score.of(0.9)).judged(criterion, Score.of(0.9)) for plan in plans)
    assert "best of 2 trials on the same data" in str(replace(result(one, other), best=one))
    assert "best of" not in str(replace(result(one), best=one))
    certified = replace(result(one, other), best=one, certified=one.verdict)
    assert "certified pass: drop +0.0000" in str(certified)
    assert "best of" not in str(certified)


def test_a_trial_is_found_by_form_samples_and_plan() -> None:
    plan = Plan({"a": Scheme.int8()})
    trials = [Trial(plan), Trial(plan, form="compiled"), Trial(plan, samples=128), Trial(Plan())]
    assert len({t.key for t in trials}) == 4
    assert Trial(plan, reason="another").key == Trial(plan).key


def test_a_trial_without_a_score_has_no_verdict() -> None:
    failed = Trial(Plan(), error="RuntimeError: no")
    assert failed.judged(Relative(0.01), Score.of(0.9)) is failed
    assert not failed.passed
    assert Trial.from_json(failed.to_json()) == failed


def test_a_result_without_its_backend_cannot_be_saved(tmp_path: object) -> None:
    from octune.errors import ArtifactError

    with pytest.raises(ArtifactError, match="no longer has its backend"):
        result().save(f"{tmp_path}/model")
