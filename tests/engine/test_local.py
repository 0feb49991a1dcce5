"""The stages of a run on a backend that is plain Python: what is remembered, what is refused, what is handed
over.
"""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.artifact import manifest
from octune.backends.base import Backend
from octune.backends.batches import Inputs
from octune.backends.terms import Finalist, Settings, Visit, Writer
from octune.calibration import Ranges
from octune.choice import fastest_passing
from octune.config import Config, parse_config
from octune.cost.latency import FP32 as AS_FAST
from octune.cost.latency import Speedup, Timed, Timing
from octune.cost.load import Patience
from octune.cost.table import SLACK
from octune.criterion import Absolute
from octune.data import as_batches
from octune.engine import Journal, Stop, Study, stopwatch
from octune.engine.events import Listener
from octune.engine.stopwatch import Stopwatch
from octune.errors import DataError, EvaluationError
from octune.evaluation.function import FunctionEvaluator
from octune.harm import WORST
from octune.int8 import limit_for
from octune.job import Job
from octune.plan import Op, Plan, Scheme
from octune.result import Result
from octune.tune import tune
from tests.clock import clock

INT8, FP32 = Scheme.int8(), Scheme.fp32()
OPS = (Op("a", "linear", (INT8, FP32), 10), Op("b", "linear", (INT8, FP32), 20))
ALL_INT8 = Plan({"a": INT8, "b": INT8})


class Model:
    """Knows its plan and how long it takes."""

    def __init__(self, plan: Plan, seconds: float = 0.0) -> None:
        self.plan, self.seconds = plan, seconds


class Fake(Backend):
    """Counts what is asked of it."""

    name = "fake"

    def __init__(self, model: Any = None, settings: Settings | None = None) -> None:
        self.limit = limit_for(portable=False)
        self.prepared, self.observed, self.applied, self.refreshes = 0, 0, 0, 0
        self.harms: dict[tuple[str, Scheme], float] = {("a", INT8): 0.1, ("b", INT8): 0.2}
        self.forms: list[Callable[[Plan], Finalist]] = []
        self.run_error: Exception | None = None

    @classmethod
    def accepts(cls, model: object) -> bool:
        return True

    def fp32_model(self) -> Model:
        return Model(Plan())

    def prepare(self, inputs: Any) -> None:
        self.prepared += 1

    def split(self, batch: Any) -> tuple[Any, Any]:
        return batch, None

    def batch_size(self, inputs: Any) -> int:
        return len(inputs)

    def resized(self, inputs: Any, size: int) -> Any:
        return inputs[:size]

    def ops(self) -> tuple[Op, ...]:
        return OPS

    def observe(self, batches: Iterable[Any], visit: Visit) -> None:
        for batch in batches:
            self.observed += 1
            for op in OPS:
                visit(op.name, np.asarray(batch, np.float32), shape=np.shape(batch))

    def apply(self, plan: Plan, ranges: Ranges) -> Model:
        self.applied += 1
        return Model(plan)

    def run(self, model: Model, inputs: Any) -> dict[str, Any]:
        if self.run_error is not None:
            raise self.run_error
        time.sleep(model.seconds)
        return {"output": np.asarray(inputs)}

    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> Callable[[], object]:
        return lambda: time.sleep(0.001 if scheme == INT8 else 0.01)

    def harm(
        self, candidates: Mapping[str, Sequence[Scheme]], ranges: Ranges, batches: Sequence[Any]
    ) -> dict[tuple[str, Scheme], float]:
        return self.harms

    def finalists(self, plan: Plan, ranges: Ranges, inputs: Any) -> Iterator[Finalist]:
        for form in self.forms:
            yield form(plan)

    def undo_user_changes(self, model: Any) -> Any:
        self.refreshes += 1
        return model

    def fingerprint(self) -> str:
        return "fake"

    def size(self, model: Model) -> int:
        return 100

    def writer(self) -> Writer:
        return lambda model, folder: {}

    @classmethod
    def load(cls, folder: Path, metadata: Mapping[str, Any], factory: Callable[[], Any] | None = None) -> Any:
        raise NotImplementedError

    @classmethod
    def open(cls, source: str) -> Any:
        raise NotImplementedError

    @classmethod
    def self_test(cls) -> Any:
        raise NotImplementedError


BATCHES = as_batches([np.ones((4, 2)), -np.ones((4, 2)), np.full((4, 2), 3.0)], role="calibration")


def study(
    evaluate: Callable[[Model], Any] = lambda model: 1.0,
    journal: Journal | None = None,
    example: Any = ((1.0,),),
) -> Study:
    backend, stop = Fake(), Stop()
    timer = Stopwatch(backend, Timing(warmup=0, iterations=1), stop, example, Patience(0.0))
    return Study(
        backend, FunctionEvaluator(evaluate), Absolute(0.1), journal or Journal(), stop, Listener(), timer
    )


def fake(made: Study) -> Fake:
    assert isinstance(made.backend, Fake)
    return made.backend


def test_the_baseline_is_scored_once_and_remembered(tmp_path: Path) -> None:
    calls: list[int] = []
    for _ in range(2):
        with Journal.open(tmp_path, {}, resume=True) as journal:
            baseline = study(lambda model: calls.append(1) or 0.75, journal).baseline()
            assert baseline.score is not None
            assert baseline.score.value == 0.75
            assert baseline.form == "fp32"
            assert baseline.plan == Plan({"a": FP32, "b": FP32})
            assert baseline.passed
    assert calls == [1]


def test_a_baseline_that_cannot_be_run_is_a_data_error() -> None:
    made = study()
    fake(made).run_error = RuntimeError("mat1 and mat2\nshapes")
    with pytest.raises(
        DataError, match=r"cannot be run on the first batch of the data: RuntimeError: mat1 and mat2$"
    ):
        made.baseline()


def test_a_journal_with_a_baseline_without_a_score_is_refused() -> None:
    made = study()
    made.baseline()
    made.journal.records("baseline")[0]["answer"]["trial"]["score"] = None
    with pytest.raises(EvaluationError, match="without a score"):
        made.baseline()


def test_calibration_stops_at_the_number_of_samples() -> None:
    made = study()
    ranges = made.survey.calibrate(BATCHES, 8)
    assert fake(made).observed == 2
    assert (ranges["a"].low, ranges["a"].high, ranges.samples) == (-1.0, 1.0, 8)
    assert made.survey.calibrate(BATCHES, 1000)["a"].high == 3.0


def test_calibration_is_kept(tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}) as journal:
        study(journal=journal).survey.calibrate(BATCHES, 8)
    with Journal.open(tmp_path, {}, resume=True) as journal:
        again = study(journal=journal)
        assert again.survey.calibrate(BATCHES, 8)["a"].high == 1.0
        assert fake(again).observed == 0
        # another number of samples is another calibration, and both are kept
        assert again.survey.calibrate(BATCHES, 12)["a"].high == 3.0
        assert fake(again).observed == 3
        more = study(journal=journal)
        assert more.survey.calibrate(BATCHES, 8)["a"].high == 1.0
        assert more.survey.calibrate(BATCHES, 12)["a"].high == 3.0
        assert fake(more).observed == 0


def test_the_backend_gets_ready_on_a_batch_or_on_the_example() -> None:
    made = study()
    made.survey.prepare(BATCHES)
    assert (fake(made).prepared, fake(made).observed) == (1, 0)
    made.survey.prepare(None)
    assert fake(made).prepared == 2
    empty = study(example=None)
    empty.survey.prepare(None)
    assert fake(empty).prepared == 0
    assert len(empty.survey.calibrate(None, 0)) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_harm_without_measure_is_the_worst(value: float, tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}) as journal:
        made = study(journal=journal)
        fake(made).harms["b", INT8] = value
        assert made.survey.harm(OPS, made.survey.calibrate(BATCHES, 8), BATCHES) == {
            ("a", INT8): 0.1,
            ("b", INT8): WORST,
        }
    with Journal.open(tmp_path, {}, resume=True) as journal:
        resumed = study(journal=journal)
        fake(resumed).harms = {}
        assert resumed.survey.harm(OPS, resumed.survey.calibrate(BATCHES, 8), BATCHES)["b", INT8] == WORST


def test_cost_is_measured_once() -> None:
    made = study()
    ranges = made.survey.calibrate(BATCHES, 8)
    cost = made.survey.cost(OPS, ranges)
    assert cost["a", INT8] < cost["a", FP32]
    assert cost["b", INT8] < cost["b", FP32]
    assert made.survey.cost(OPS, ranges) == cost
    assert made.survey.cost(OPS, Ranges()) == {}


def test_a_trial_is_answered_by_the_journal_if_it_was_run_before() -> None:
    calls: list[Plan] = []
    made = study(lambda model: calls.append(model.plan) or 1.0)
    made.baseline()
    ranges = made.survey.calibrate(BATCHES, 8)
    first = made.trial(ALL_INT8, "first", ranges)
    again = made.trial(ALL_INT8, "again", ranges)
    assert calls == [Plan(), ALL_INT8]
    assert first is not None
    assert again is not None
    assert (again.plan, again.score, again.verdict) == (first.plan, first.score, first.verdict)
    other = made.trial(ALL_INT8, "other ranges", made.survey.calibrate(BATCHES, 12))
    assert len(calls) == 3
    assert other is not None
    assert (first.samples, other.samples) == (8, 12)
    assert made.stop.trials == 3


def test_models_of_trials_are_not_hoarded_but_made_again() -> None:
    made = study()
    made.baseline()
    ranges = made.survey.calibrate(BATCHES, 8)
    for plan in (ALL_INT8, Plan({"a": INT8, "b": FP32})):
        made.trial(plan, "", ranges)
    assert made.models == {}
    applied = fake(made).applied
    assert made.model(made.trials[0]).plan == ALL_INT8
    assert fake(made).applied == applied + 1
    assert made.baseline_trial is not None
    assert made.model(made.baseline_trial).plan == Plan()


def test_the_model_is_timed_before_evaluation_code_can_touch_it() -> None:
    def spoil(model: Model) -> float:
        model.seconds = math.nan  # from here on it cannot be run
        return 1.0

    made = study(spoil)
    made.baseline()
    trial = made.trial(ALL_INT8, "", made.survey.calibrate(BATCHES, 8))
    assert trial is not None
    assert trial.error is None
    assert trial.latency_ms is not None


def test_a_failed_trial_keeps_its_reason_in_one_line() -> None:
    def fail(model: Model) -> float:
        if model.plan:
            raise RuntimeError("first line\nsecond line")
        return 1.0

    made = study(fail)
    made.baseline()
    trial = made.trial(ALL_INT8, "", made.survey.calibrate(BATCHES, 8))
    assert trial is not None
    assert trial.error == "EvaluationError: The evaluation raised RuntimeError: first line"
    assert trial.verdict is None
    assert not trial.passed
    assert len(made.journal.records("trial")) == 1


def test_an_interrupted_trial_is_not_recorded() -> None:
    def interrupt(model: Model) -> float:
        if model.plan:
            raise KeyboardInterrupt
        return 1.0

    made = study(interrupt)
    made.baseline()
    assert made.trial(ALL_INT8, "", made.survey.calibrate(BATCHES, 8)) is None
    assert made.stop.reason == "interrupted by the user"
    assert made.journal.records("trial") == []


# -- finalists -----------------------------------------------------------------------------------------------


def with_winner(
    evaluate: Callable[[Model], Any] = lambda model: 1.0, example: Any = ((1.0,),), seconds: float = 0.0
) -> tuple[Study, Ranges]:
    """A study whose eager winner takes this many seconds for a call."""
    made = study(evaluate, example=example)
    made.baseline()
    ranges = made.survey.calibrate(BATCHES, 8)
    fake(made).apply = lambda plan, ranges: Model(plan, seconds=seconds)  # type: ignore[method-assign]
    made.trial(ALL_INT8, "", ranges)
    return made, ranges


def test_a_faster_form_is_scored_and_kept() -> None:
    made, ranges = with_winner(seconds=0.05)
    compiled = Model(ALL_INT8)
    fake(made).forms = [lambda plan: Finalist("compiled", compiled)]
    made.forms.make(made.trials[0], ranges)
    assert [trial.form for trial in made.trials] == ["eager", "compiled"]
    assert made.trials[1].passed
    assert made.model(made.trials[1]) is compiled
    assert fake(made).refreshes == 1


def test_a_form_that_is_not_faster_is_not_used() -> None:
    made, ranges = with_winner()
    fake(made).forms = [lambda plan: Finalist("compiled", Model(plan, seconds=0.05))]
    made.forms.make(made.trials[0], ranges)
    assert len(made.trials) == 1
    assert "the compiled form is not clearly faster" in made.notes[0]


def test_a_form_must_be_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, Speedup(2.0, 1.8, 2.2), Speedup(2.3, 2.1, 2.5), Speedup(3.0, 2.5, 3.5))
    made, ranges = with_winner()
    fake(made).forms = [
        lambda plan: Finalist("slow", Model(plan)),
        lambda plan: Finalist("fast", Model(plan)),
    ]
    made.forms.make(made.trials[0], ranges)
    assert [trial.form for trial in made.trials] == ["eager", "fast"]
    assert made.notes == [
        "the slow form is not clearly faster than eager int8 (2.30x [2.10, 2.50], eager 2.00x [1.80, 2.20]), "
        "so it is not used"
    ]
    assert asked["rival"] == [AS_FAST, made.trials[0].speed, made.trials[0].speed]
    assert asked["ceiling"] == [math.inf] * 3  # forms that fuse ops are not bound by what ops take alone


def test_a_form_that_cannot_be_made_is_a_note() -> None:
    def fail(plan: Plan) -> Finalist:
        raise RuntimeError("no compiler")

    made, ranges = with_winner()
    fake(made).forms = [fail]
    made.forms.make(made.trials[0], ranges)
    assert made.notes == ["the winner stays eager int8: RuntimeError: no compiler"]


def test_an_interrupted_compilation_leaves_the_eager_winner() -> None:
    def interrupt(plan: Plan) -> Finalist:
        raise KeyboardInterrupt

    made, ranges = with_winner()
    fake(made).forms = [interrupt]
    made.forms.make(made.trials[0], ranges)
    assert made.stop.interrupted
    assert len(made.trials) == 1


def test_without_an_input_nothing_is_compiled() -> None:
    made, ranges = with_winner(example=None)
    fake(made).forms = [lambda plan: Finalist("compiled", Model(plan))]
    made.forms.make(made.trials[0], ranges)
    assert len(made.trials) == 1
    assert made.trials[0].speedup is None


def test_a_resumed_run_neither_times_nor_scores_a_form_again(tmp_path: Path) -> None:
    scored: list[Plan] = []
    for _ in range(2):
        with Journal.open(tmp_path, {}, resume=True) as journal:
            made = study(lambda model: scored.append(model.plan) or 1.0, journal)
            made.baseline()
            ranges = made.survey.calibrate(BATCHES, 8)
            fake(made).apply = lambda plan, ranges: Model(plan, seconds=0.05)  # type: ignore[method-assign]
            made.trial(ALL_INT8, "", ranges)
            compiled = Model(ALL_INT8)
            fake(made).forms = [lambda plan, made_form=compiled: Finalist("compiled", made_form)]
            made.forms.make(made.trials[0], ranges)
            assert [trial.form for trial in made.trials] == ["eager", "compiled"]
            assert made.model(made.trials[1]) is compiled
            assert len(journal.records("trial")) == 2
    assert scored == [Plan(), ALL_INT8, ALL_INT8]


# -- speed ---------------------------------------------------------------------------------------------------


def timed(monkeypatch: pytest.MonkeyPatch, *speeds: Speedup) -> dict[str, list[Any]]:
    """Let models have these speeds, one after the other; what is asked for is put down."""
    answers, asked = iter(speeds), dict[str, list[Any]]()

    def compare(baseline: object, candidate: object, timing: Timing, **wanted: Any) -> Timed:
        for name, value in wanted.items():
            asked.setdefault(name, []).append(value)
        return Timed(next(answers), 1.0)

    monkeypatch.setattr(stopwatch, "compare", compare)
    return asked


def tuned(monkeypatch: pytest.MonkeyPatch, made: Study, config: Config | None = None) -> Result:
    """A whole run of this study."""
    job = Job(config or Config(), made, BATCHES, (8,), None)
    monkeypatch.setattr(Job, "of", lambda *args, **kwargs: job)
    return tune()


@pytest.mark.parametrize(
    ("speed", "busy"),
    [
        (Speedup(0.7, 0.6, 0.8), False),
        (Speedup(1.05, 0.98, 1.1), False),
        (Speedup(0.3, 0.1, 0.8, load=0.5), True),
    ],
    ids=["slower", "a tie", "slower on a busy machine"],
)
def test_a_slower_model_never_wins_a_race_for_speed(
    monkeypatch: pytest.MonkeyPatch, speed: Speedup, busy: bool
) -> None:
    timed(monkeypatch, speed)
    result = tuned(monkeypatch, study())
    assert result.met
    assert result.best is result.baseline
    assert result.model.plan == Plan()
    assert result.stopped_because.endswith(
        "what met the criterion was not clearly faster than fp32 here, so fp32 is handed back"
    )
    assert bool(result.notes) == busy


def test_a_faster_model_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, Speedup(1.2, 1.1, 1.3))
    result = tuned(monkeypatch, study())
    assert result.model.plan.names("int8") == ALL_INT8.names("int8")
    assert result.speedup == 1.2


def with_latencies(
    monkeypatch: pytest.MonkeyPatch, made: Study, *, fp32: float, eager: float, compiled: float
) -> None:
    """Let models take this many seconds for a call, on a quiet machine whose clock only they move."""
    passes = clock(monkeypatch)
    backend = fake(made)
    monkeypatch.setattr(backend, "fp32_model", lambda: Model(Plan(), fp32))
    monkeypatch.setattr(backend, "apply", lambda plan, ranges: Model(plan, eager))
    monkeypatch.setattr(backend, "run", lambda model, inputs: passes(model.seconds) or {"output": inputs})
    monkeypatch.setattr(
        backend, "alone", lambda op, scheme, ranges: lambda: passes(0.001 if scheme == INT8 else 0.01)
    )
    backend.forms = [lambda plan: Finalist("compiled", Model(plan, compiled))]


def test_what_is_slower_in_every_form_is_measured_so_and_fp32_is_handed_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = study()
    with_latencies(monkeypatch, made, fp32=0.010, eager=0.013, compiled=0.011)
    result = tuned(monkeypatch, made)
    assert [(trial.form, trial.passed) for trial in result.trials] == [("eager", True), ("compiled", True)]
    assert [trial.speedup for trial in result.trials] == [pytest.approx(10 / 13), pytest.approx(10 / 11)]
    assert result.best is result.baseline
    assert result.model.plan == Plan()
    assert result.stopped_because == (
        "a plan met the criterion; "
        "what met the criterion was not clearly faster than fp32 here, so fp32 is handed back"
    )
    assert result.stopped_because in str(result)


@pytest.mark.parametrize(
    ("eager", "compiled", "form"),
    [(0.005, 0.006, "eager"), (0.013, 0.004, "compiled"), (0.009, 0.002, "compiled")],
)
def test_what_is_measured_to_be_faster_wins_in_its_fastest_form(
    monkeypatch: pytest.MonkeyPatch, eager: float, compiled: float, form: str
) -> None:
    made = study()
    with_latencies(monkeypatch, made, fp32=0.010, eager=eager, compiled=compiled)
    result = tuned(monkeypatch, made)
    assert result.met
    assert result.best.form == form
    assert result.speedup == pytest.approx(0.010 / min(eager, compiled))
    assert result.model.plan.names("int8") == ALL_INT8.names("int8")
    assert "fp32 is handed back" not in str(result)


def test_a_result_does_not_keep_the_backend_alive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The backend has the fp32 model, weights and sessions: a result needs none of them to be saved."""
    timed(monkeypatch, Speedup(1.2, 1.1, 1.3))
    made = study()
    backend = weakref.ref(made.backend)
    result = tuned(monkeypatch, made)
    del made
    monkeypatch.undo()  # it holds the job
    gc.collect()
    assert backend() is None
    saved = manifest(result.save(tmp_path / "model"))
    assert (saved["framework"], saved["plan_digest"]) == ("fake", result.plan.digest)


def test_a_form_wins_over_a_winner_that_it_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, Speedup(0.7, 0.6, 0.8), Speedup(2.0, 1.9, 2.1))
    made = study()
    fake(made).forms = [lambda plan: Finalist("compiled", Model(plan))]
    assert tuned(monkeypatch, made).best.form == "compiled"


def test_a_busy_machine_is_said_to_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain form of what the ops' own costs chose stays: noise chooses neither fp32 nor another form."""
    timed(monkeypatch, Speedup(0.9, 0.4, 2.0, load=0.55), Speedup(5.0, 1.9, 9.0, load=0.6))
    made = study()
    fake(made).forms = [lambda plan: Finalist("compiled", Model(plan))]
    result = tuned(monkeypatch, made)
    assert result.best.form == "eager"
    assert result.stopped_because == (
        "a plan met the criterion; others kept the machine too busy to tell whether it is faster than fp32"
    )
    assert (
        "the machine was too busy to compare speeds: other processes took up to 60% of the CPU"
        in result.notes[-1]
    )
    assert "compiled form is not clearly faster" in result.notes[0]


def test_a_resumed_run_knows_that_the_machine_was_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timed(monkeypatch, Speedup(4.0, 2.0, 8.0, load=0.5))
    notes = []
    for _ in range(2):
        with Journal.open(tmp_path, {}, resume=True) as journal:
            result = tuned(monkeypatch, study(journal=journal))
            assert result.best.speed == Speedup(4.0, 2.0, 8.0, load=0.5)
            notes.append(result.notes)
    assert notes[0] == notes[1]
    assert "too busy" in notes[0][-1]


def test_models_that_tie_in_speed_are_chosen_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    made = study()
    plans = [Plan({"a": INT8, "b": FP32}), ALL_INT8, Plan({"a": FP32, "b": INT8})]
    timed(monkeypatch, Speedup(2.1, 2.0, 2.2), Speedup(2.0, 1.9, 2.1), Speedup(1.5, 1.4, 1.6))
    fake(made).size = lambda model: 100 - 10 * len(model.plan.names("int8"))  # type: ignore[method-assign]
    made.baseline()
    ranges = made.survey.calibrate(BATCHES, 8)
    for plan in plans:
        made.trial(plan, "", ranges)
    assert chosen(made, "performance") == ALL_INT8
    fake(made).size = lambda model: 100  # type: ignore[method-assign]
    for index, trial in enumerate(made.trials):
        made.trials[index] = replace(trial, size=100)
    assert chosen(made, "performance") == plans[0]  # what ties in all is what was there first
    made.trials.reverse()
    assert chosen(made, "performance") == ALL_INT8
    assert chosen(made, "modelsize") == ALL_INT8  # of equal size the faster


def chosen(made: Study, objective: str) -> Plan:
    job = Job(parse_config({"tuning": {"objective": objective}}, source="test"), made, None, (8,), None)
    best = fastest_passing(made, job)
    assert best is not None
    return best.plan


def test_a_gain_beyond_what_ops_allow_is_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, Speedup(15.0, 14.0, 16.0))
    made = study()
    made.baseline()
    ranges = made.survey.calibrate(BATCHES, 8)
    made.stopwatch.costs = {("a", INT8): 1.0, ("a", FP32): 2.0, ("b", INT8): 1.0, ("b", FP32): 2.0}
    made.trial(Plan({"a": INT8}), "", ranges)
    limit = asked["ceiling"][0]
    assert limit == pytest.approx(SLACK * 4.0 / 3.0)
    assert made.notes == [
        "a speed-up of 15.00x [14.00, 16.00] is doubtful: by what its ops take alone, it is no more than "
        f"{limit:.2f}x"
    ]


def test_no_more_time_is_spent_on_waiting_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, AS_FAST)
    made = study()
    made.stop = Stop(timeout=5.0)
    made.stopwatch = Stopwatch(made.backend, Timing(), made.stop, ((1.0,),), Patience(20.0))
    made.baseline()
    made.trial(ALL_INT8, "", made.survey.calibrate(BATCHES, 8))
    assert asked["patience"][0].seconds <= 5.0


def test_no_two_plans_have_the_same_label() -> None:
    made = study()
    made.baseline()
    plans = [ALL_INT8, Plan({"a": FP32, "b": INT8}), Plan({"a": INT8, "b": FP32})]
    trials = [made.trial(plan, "one in float", Ranges()) for plan in plans]
    labels = [trial.reason for trial in trials if trial is not None]
    assert len(set(labels)) == 3
    assert labels[:2] == ["one in float", "one in float; a in fp32"]


def compared(monkeypatch: pytest.MonkeyPatch, how: str) -> Result:
    """A run whose winner is compiled, and three times as fast as compiled fp32."""
    made = study()
    with_latencies(monkeypatch, made, fp32=0.012, eager=0.006, compiled=0.002)
    backend = fake(made)
    monkeypatch.setattr(Fake, "fp32_forms", frozenset({"compiled"}))
    backend.forms = [lambda plan: Finalist("compiled", Model(plan, 0.002 if plan.names("int8") else 0.006))]
    return tuned(monkeypatch, made, parse_config({"performance": {"compare_fp32": how}}))


def test_fp32_is_timed_in_the_form_of_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared(monkeypatch, "always")
    assert result.best.form == "compiled"
    assert result.speedup == pytest.approx(6.0)
    assert result.fp32_in_form is not None
    assert result.fp32_in_form.speed.ratio == pytest.approx(2.0)
    assert result.int8_gain == pytest.approx(3.0)
    assert "of which  3.00x by int8 itself: fp32 in the same form (compiled) takes 6.00 ms" in str(result)
    assert result.to_dict()["int8_gain"] == pytest.approx(3.0)


def test_fp32_is_not_timed_in_that_form_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared(monkeypatch, "never")
    assert result.best.form == "compiled"
    assert result.fp32_in_form is None
    assert "of which" not in str(result)


def test_float_does_not_compete_where_int8_is_ahead_and_making_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = study()
    with_latencies(monkeypatch, made, fp32=0.012, eager=0.006, compiled=0.002)
    monkeypatch.setattr(Fake, "fp32_forms", frozenset({"compiled"}))
    tried: list[Plan] = []
    fake(made).forms = [
        lambda plan: tried.append(plan) or Finalist("compiled", Model(plan, 0.002), seconds=3600.0)
    ]
    result = tuned(monkeypatch, made)
    assert [plan.names("int8") for plan in tried] == [ALL_INT8.names("int8")]
    assert result.over_float is None
    assert "performance.compare_fp32: always" in made.notes[-1]


def test_a_form_that_is_slower_at_another_size_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(example=Inputs((np.ones((8, 2)),)))
    with_latencies(monkeypatch, made, fp32=0.012, eager=0.006, compiled=0.002)
    backend = fake(made)
    run = backend.run

    def slow_alone(model: Model, inputs: Inputs) -> Any:
        if getattr(inputs, "batch_size", 8) == 1 and model.seconds == 0.002:
            run(model, inputs), run(model, inputs), run(model, inputs)
        return run(model, inputs)

    monkeypatch.setattr(backend, "run", slow_alone)
    monkeypatch.setattr(backend, "batch_size", lambda inputs: getattr(inputs, "batch_size", 4))
    monkeypatch.setattr(backend, "resized", lambda inputs, samples: inputs.resized(samples))
    result = tuned(monkeypatch, made)
    assert result.best.form == "compiled"
    assert result.notes[-1] == (
        "at batch 1 the compiled form is slower than eager int8 (0.75x); it was chosen at batch 8. "
        "performance.inputs names the sizes that matter"
    )


# -- float competes ------------------------------------------------------------------------------------------


def contest(
    monkeypatch: pytest.MonkeyPatch,
    made: Study,
    *,
    int8: float = 0.009,
    fp32: float = 0.004,
    off: float = 0.0,
) -> Study:
    """A study whose model takes 12 ms, in int8 10; compiled ``int8`` and ``fp32`` seconds, with outputs that
    are ``off``.
    """
    with_latencies(monkeypatch, made, fp32=0.012, eager=0.010, compiled=int8)
    monkeypatch.setattr(Fake, "fp32_forms", frozenset({"compiled"}))
    backend = fake(made)
    run = backend.run

    def outputs(model: Model, inputs: Any) -> dict[str, Any]:
        run(model, inputs)
        return {"output": np.arange(4.0) + (off if model.seconds == fp32 else 0.0)}

    monkeypatch.setattr(backend, "run", outputs)
    backend.forms = [lambda plan: Finalist("compiled", Model(plan, int8 if plan.names("int8") else fp32))]
    return made


def test_a_float_form_that_is_faster_than_int8_wins_without_being_scored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scored: list[float] = []
    made = contest(monkeypatch, study(lambda model: scored.append(model.seconds) or 1.0))
    result = tuned(monkeypatch, made)
    assert result.met
    assert (result.best.title, result.model.seconds) == ("fp32 (compiled)", 0.004)
    assert result.best.score == result.baseline.score
    assert result.speedup == pytest.approx(3.0)
    assert 0.004 not in scored
    assert "same outputs" in result.best.reason
    assert result.kept == {}
    assert result.stopped_because.endswith("the fastest model that passes is fp32 (compiled)")
    assert result.fastest_float is not None
    assert result.fastest_float[0] == "fp32 (compiled)"
    assert "criterion met, by fp32 (compiled)" in str(result)
    saved = manifest(result.save(tmp_path / "model"))
    assert (saved["best"]["form"], saved["plan_digest"]) == ("compiled", result.plan.digest)
    assert {scheme["dtype"] for scheme in saved["plan"].values()} == {"fp32"}
    assert saved["safe_on"] == "any x86-64 CPU"


@pytest.mark.parametrize(("score", "winner"), [(1.0, "fp32 (compiled)"), (0.5, "int8 (compiled)")])
def test_a_float_form_that_answers_something_else_is_scored(
    monkeypatch: pytest.MonkeyPatch, score: float, winner: str
) -> None:
    made = contest(monkeypatch, study(lambda model: score if model.seconds == 0.004 else 1.0), off=0.01)
    result = tuned(monkeypatch, made)
    assert result.best.title == winner
    assert result.trials[-1].score is not None
    assert result.trials[-1].score.value == score


def test_int8_that_is_faster_than_float_wins_and_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    made = contest(monkeypatch, study(), int8=0.007, fp32=0.009)
    result = tuned(monkeypatch, made)
    assert result.best.title == "int8 (compiled)"
    assert result.over_float == pytest.approx(9 / 7)
    assert [trial.dtype for trial in result.trials] == ["int8", "int8"]
    assert "the fastest that was timed is fp32 (compiled), 1.33x as fast as fp32; int8 is 1.29x" in str(
        result
    )


def test_where_no_int8_plan_passes_the_fastest_float_form_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = contest(monkeypatch, study(lambda model: 0.5 if model.plan.names("int8") else 1.0))
    result = tuned(monkeypatch, made)
    assert result.met
    assert result.best.title == "fp32 (compiled)"
    assert result.stopped_because.endswith(
        "no int8 plan met the criterion; the fastest model that passes is fp32 (compiled)"
    )


def test_a_resumed_run_knows_how_fast_float_forms_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = []
    for _ in range(2):
        with Journal.open(tmp_path, {}, resume=True) as journal:
            made = contest(monkeypatch, study(journal=journal))
            results.append(tuned(monkeypatch, made))
            monkeypatch.undo()
    assert [result.best.title for result in results] == ["fp32 (compiled)"] * 2
    assert results[0].floats == results[1].floats
    assert results[1].model.seconds == 0.004


def test_where_size_counts_float_does_not_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    made = contest(monkeypatch, study())
    result = tuned(monkeypatch, made, parse_config({"tuning": {"objective": "modelsize"}}))
    assert result.best.dtype == "int8"


def test_bf16_is_tried_where_int8_is_not_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    bf16 = Scheme.bf16()
    made = contest(monkeypatch, study(), fp32=0.011)
    backend = fake(made)
    ops = tuple(replace(op, schemes=(INT8, bf16, FP32)) for op in OPS)
    monkeypatch.setattr(backend, "ops", lambda: ops)

    def apply(plan: Plan, ranges: Ranges) -> Model:
        return Model(plan, 0.005 if plan.names("bf16") else 0.010)

    monkeypatch.setattr(backend, "apply", apply)
    result = tuned(monkeypatch, made)
    assert result.best.title == "bf16 (eager)"
    assert set(result.floats) == {"fp32 (compiled)", "bf16 (eager)", "bf16 (compiled)"}
    assert result.model.plan.names("bf16") == ["a", "b"]
