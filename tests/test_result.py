"""Results: the front, and trials as plain data."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from octune.cost.latency import Speedup, Spread, Timed
from octune.coverage import Work
from octune.criterion import Relative
from octune.errors import MissingDependency
from octune.plan import Op, Plan, Scheme
from octune.report.tables import result_table
from octune.result import Result, Trial, fp32_beside
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
        # slower and worse is out
        ([(0.88, 4.0), (0.85, 5.0), (0.89, 6.0)], True, [(0.88, 4.0), (0.89, 6.0), (0.9, 10.0)]),
        ([(0.95, 4.0)], True, [(0.95, 4.0)]),  # better and faster: fp32 itself is out
        ([(0.88, 4.0), (0.89, 4.0)], True, [(0.89, 4.0), (0.9, 10.0)]),  # equally fast: the better one
        ([(0.9, 4.0)], True, [(0.9, 4.0)]),
        # lower is better
        ([(1.2, 4.0), (0.95, 6.0), (1.0, 7.0)], False, [(1.2, 4.0), (0.95, 6.0), (0.9, 10.0)]),
        # what was not scored or not timed is not compared
        ([(None, 4.0), (0.89, None)], True, [(0.9, 10.0)]),
    ],
)
def test_front(
    points: list[tuple[float | None, float | None]], higher: bool, expected: list[tuple[float, float]]
) -> None:
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


def test_a_speed_is_kept_with_its_interval_and_the_load() -> None:
    timed = Trial(Plan(), latency_ms=2.0, speed=Speedup(3.54, 3.31, 3.8, load=0.02))
    data = timed.to_json()
    assert (data["speedup"], data["speedup_interval"], data["load"]) == (3.54, [3.31, 3.8], 0.02)
    assert Trial.from_json(json.loads(json.dumps(data))) == timed
    untimed = Trial(Plan())
    assert Trial.from_json(untimed.to_json()) == untimed
    assert untimed.speedup is None


def test_a_latency_says_its_spread_its_batch_and_its_threads() -> None:
    plan = Plan({"a": Scheme.int8()})
    best = Trial(plan, score=Score.of(0.9)).timed(
        Timed(Speedup(2.5, 2.3, 2.7), 1.93, Spread(1.9, 1.93, 2.1), Spread(4.5, 4.83, 5.0))
    )
    assert Trial.from_json(json.loads(json.dumps(best.to_json()))) == best
    found = result(best)
    tuned = replace(
        found,
        best=best,
        plan=plan,
        baseline=fp32_beside(found.baseline, [best], ()),
        batch=32,
        environment={"threads": 2},
    )
    assert "1.93 ms (p90 2.10) at batch 32, 2 threads, 2.50x [2.30, 2.70] as fast as fp32" in str(tuned)
    shown = io.StringIO()
    Console(width=200, file=shown).print(result_table(tuned))
    assert "4.83 ms (p90 5.00)" in shown.getvalue()
    assert "batch 32, 2 threads" in shown.getvalue()


def test_fp32_in_turns_with_a_trial_of_an_earlier_version_is_what_its_speed_implies() -> None:
    old = Trial(Plan(), latency_ms=2.0, speed=Speedup(3.5, 3.0, 4.0))
    assert fp32_beside(trial(0.9, 99.0, "fp32"), [trial(0.9, None), old], ()).latency_ms == 7.0
    assert fp32_beside(trial(0.9, 99.0, "fp32"), [], ()).latency_ms == 99.0


def test_journals_without_intervals_can_still_be_read() -> None:
    data = Trial(Plan(), latency_ms=2.0, speed=Speedup(3.5, 3.0, 4.0)).to_json()
    new = ("speedup_interval", "load", "spread_ms", "fp32_spread_ms")
    before = {key: value for key, value in data.items() if key not in new}
    old = Trial.from_json(before)
    assert old.speedup == 3.5
    assert str(old.speed) == "3.50x"
    assert Trial.from_json({**before, "speedup": None}).speed is None


def test_reports_show_how_sure_a_speed_is() -> None:
    plan = Plan({"a": Scheme.int8()})
    best = Trial(plan, score=Score.of(0.9), latency_ms=2.0, speed=Speedup(3.54, 3.31, 3.8)).judged(
        Relative(0.01), Score.of(0.9)
    )
    tuned = replace(result(best), best=best, plan=plan)
    assert "2.00 ms, 3.54x [3.31, 3.80] as fast as fp32 (eager)" in str(tuned)
    assert "0 trials in" in str(replace(tuned, trials=()))
    assert "1 trial in" in str(tuned)
    console = Console(width=200, file=io.StringIO())
    console.print(result_table(tuned))
    assert "3.54x [3.31, 3.80]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_result_without_its_backend_cannot_be_saved(tmp_path: object) -> None:
    from octune.errors import ArtifactError

    with pytest.raises(ArtifactError, match="no model to save"):
        result().save(f"{tmp_path}/model")


def told() -> Result:
    """A result with a winner and a trial that failed."""
    plan = Plan({"a": Scheme.int8(), "b": Scheme.fp32()})
    timed = Timed(Speedup(2.5, 2.3, 2.7), 1.93, Spread(1.9, 1.93, 2.1), Spread(4.5, 4.83, 5.0))
    best = Trial(plan, form="compiled", reason="the winner", score=Score.of(0.9)).timed(timed)
    best = best.judged(Relative(0.01), Score.of(0.9))
    failed = Trial(plan, reason="another", error="RuntimeError: no")
    ops = (Op("a", "linear", (Scheme.int8(), Scheme.fp32()), 12), Op("b", "conv2d", parameters=9))
    return replace(
        result(best, failed), best=best, plan=plan, ops=ops, batch=32, kept={"b": "accuracy"}, seconds=27.0
    )


def test_a_result_in_one_line() -> None:
    shown = repr(told())
    assert shown == (
        "<octune.Result: criterion met, int8 (compiled), score 0.9000 -> 0.9000, 2.50x [2.30, 2.70], "
        "2 trials in 27.0 s>"
    )
    assert len(repr(told().trials)) < 300
    assert "RuntimeError: no" in repr(told().trials[1])
    assert "fp32" in repr(result())


def test_a_notebook_shows_the_table() -> None:
    html = told()._repr_html_()
    assert "1.93 ms (p90 2.10)" in html
    assert html.count("<pre") == 1


def test_a_result_as_plain_data() -> None:
    data = told().to_dict(saved_to="model-int8")
    assert json.loads(told().to_json(saved_to="model-int8")) == data
    assert (data["met"], data["batch"], data["saved_to"]) == (True, 32, "model-int8")
    assert data["best"]["spread_ms"] == {"p10": 1.9, "p50": 1.93, "p90": 2.1}
    assert told().to_dict()["saved_to"] is None


def test_coverage_is_a_number_and_told() -> None:
    told_of = replace(told(), work=Work({"a": 75, "b": 20}, {"lstm": 5}, {}, {"softmax": 2}))
    assert told().coverage is None
    assert told_of.coverage is not None
    assert (told_of.coverage.int8, told_of.coverage.fp32) == (0.75, 0.25)
    assert told_of.to_dict()["coverage"]["unseen"] == {"lstm": 0.05}
    wanted = "75% int8, 20% fp32 for accuracy, 5% fp32 not seen (lstm)"
    assert f"of the multiply-adds: {wanted}\n            multiply nothing: softmax 2" in str(told_of)
    assert "75% int8, 25% fp32" in told_of._repr_html_()


def test_a_result_as_data_frames() -> None:
    pytest.importorskip("pandas")
    trials, ops = told().to_pandas()
    assert list(trials.form) == ["fp32", "compiled", "eager"]
    assert trials.p90_ms[1] == 2.1
    assert trials.fp32_p50_ms[1] == 4.83
    assert trials.outcome[1] == "pass"
    assert list(ops.op) == ["a", "b"]
    assert list(ops.dtype) == ["int8", "fp32"]
    assert ops.why[1] == "accuracy"
    assert ops.multiply_adds[1] is None


def test_without_pandas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"to_pandas\(\) needs pandas.*: pip install pandas$"):
        told().to_pandas()


def test_fp32_against_itself_is_never_undecidable() -> None:
    few = replace(trial(0.9, 10.0, "fp32"), score=Score.from_items([1.0, 0.0, 1.0]))
    for criterion, passed in ((Relative(0.01, confidence=0.95), True), (Relative(-0.01), False)):
        verdict = few.judged_as_baseline(criterion).verdict
        assert verdict is not None
        assert (verdict.passed, verdict.undecidable, verdict.certainty) == (passed, False, "")
