"""tune() against what users really bring: their scoring code, their data, their settings. All on a real,
small model.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import octune  # noqa: E402
from octune import Relative, Result, Scheme  # noqa: E402
from octune.engine.events import Listener  # noqa: E402
from octune.errors import (  # noqa: E402
    ConfigError,
    DataError,
    EvaluationError,
    EvaluationTimeout,
    ModelError,
)
from tests.digits import Digits, config  # noqa: E402
from tests.end_to_end.user_code import guilty, only_on_trials, raise_, tune  # noqa: E402

# -- an ordinary run -----------------------------------------------------------------------------------------


def test_an_ordinary_run(data: Digits, tuned: Result) -> None:
    assert tuned.met
    assert tuned.plan.counts() == {"int8": 3}
    assert tuned.best.passed
    assert tuned.best.size is not None
    assert tuned.baseline.size is not None
    assert tuned.best.size < 0.4 * tuned.baseline.size
    assert tuned.stopped_because == "a plan met the criterion"
    assert len(tuned.trials) == 1
    assert isinstance(tuned.model, nn.Module)
    assert not tuned.model.training
    # What is handed over is what was scored.
    assert tuned.best.score is not None
    assert data.accuracy(tuned.model) == pytest.approx(tuned.best.score.value)
    assert tuned.baseline.score is not None
    assert data.accuracy(data.model()) == pytest.approx(tuned.baseline.score.value)
    assert tuned.baseline in tuned.front or tuned.best in tuned.front


def test_the_int8_model_is_close_but_not_the_same(data: Digits, tuned: Result) -> None:
    with torch.no_grad():
        wanted, got = data.model()(data.test), tuned.model(data.test)
    error = float((got - wanted).norm() / wanted.norm())
    assert 0 < error < 0.05


def test_printing_a_result(tuned: Result) -> None:
    story = str(tuned)
    assert story.startswith("criterion met (at most 1.00% of the fp32 score lost)")
    for part in (
        "score     fp32",
        "verdict   pass",
        "plan      3 int8",
        "1 trial in",
        "stopped because a plan met the criterion",
    ):
        assert part in story
    assert repr(tuned)


def test_trials_survive_json(tuned: Result) -> None:
    for trial in (tuned.baseline, *tuned.trials):
        again = octune.Trial.from_json(json.loads(json.dumps(trial.to_json(), allow_nan=False)))
        assert (again.plan, again.score, again.key, again.size) == (
            trial.plan,
            trial.score,
            trial.key,
            trial.size,
        )


def test_a_listener_hears_it_all(data: Digits) -> None:
    class Ear(Listener):
        def __init__(self) -> None:
            self.heard: list[str] = []
            self.ended: list[str] = []

        def done(self, name: str, seconds: float) -> None:
            assert seconds >= 0
            self.ended.append(name)

        def stage(self, name: str, detail: str) -> None:
            self.heard.append(name)

        def trial(self, trial: octune.Trial) -> None:
            self.heard.append(f"trial {trial.form}")

        def close(self) -> None:
            self.heard.append("closed")

    ear = Ear()
    tune(data, data.accuracy, listener=ear)
    begin = ["baseline", "trial fp32", "prepare", "calibration", "harm"]
    assert ear.heard == [*begin, "look", "trial", "trial eager", "look", "closed"]
    assert ear.ended == [name for name in ear.heard if not name.startswith("trial ") and name != "closed"]


# -- scoring code that misbehaves ----------------------------------------------------------------------------


def test_evaluate_that_raises_on_the_baseline_is_raised(data: Digits) -> None:
    with pytest.raises(
        EvaluationError, match=r"fp32 model could not be scored.*The evaluation raised KeyError: 'x'"
    ):
        tune(data, lambda model: {}["x"])


def test_evaluate_that_raises_on_trials_is_recorded_and_a_result_comes_back(data: Digits) -> None:
    result = tune(data, only_on_trials(data, lambda model: raise_(RuntimeError("cannot\nread this"))))
    assert not result.met
    assert result.trials
    assert all(
        trial.error == "EvaluationError: The evaluation raised RuntimeError: cannot"
        for trial in result.trials
    )
    assert result.best is result.baseline
    assert result.plan.counts() == {"fp32": 3}
    assert torch.equal(result.model(data.test), data.model()(data.test))
    assert "none could be scored (EvaluationError: The evaluation raised" in result.stopped_because
    assert "criterion NOT met, the fp32 model is handed back" in str(result)


def test_one_bad_trial_does_not_end_the_search(data: Digits) -> None:
    result = tune(
        data, lambda model: raise_(RuntimeError("no")) if "Int8" in type(model[0]).__name__ else 1.0
    )
    assert result.met
    assert result.plan["0"].is_float
    assert result.plan.names("int8")


def test_sys_exit_in_evaluate_is_a_failed_trial(data: Digits) -> None:
    result = tune(data, only_on_trials(data, lambda model: sys.exit(1)), max_trials=1)
    assert "SystemExit" in (result.trials[0].error or "")


def test_evaluate_that_hangs_on_a_trial(data: Digits) -> None:
    result = tune(data, only_on_trials(data, lambda model: time.sleep(600)), trial_timeout=1.0, max_trials=1)
    assert not result.met
    assert "EvaluationTimeout: The evaluation ran past the limit of 1 s" in (result.trials[0].error or "")


def test_evaluate_that_hangs_on_the_baseline(data: Digits) -> None:
    with pytest.raises(EvaluationTimeout, match=r"fp32 model could not be scored.*past the limit of 0.2 s"):
        tune(data, lambda model: time.sleep(600), trial_timeout=0.2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None"),
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        ("0.93", "returned '0.93', a str"),
        ({"acc": 0.9}, "a dict with the keys"),
        ((0.9, 0.1), "a tuple of 2"),
        (True, "a bool"),
        (np.zeros((2, 2)), "shape"),
    ],
)
def test_what_is_no_score(data: Digits, value: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        tune(data, lambda model: value)
    result = tune(data, only_on_trials(data, lambda model: value), max_trials=1)
    assert not result.met
    assert message.replace("\\", "") in (result.trials[0].error or "")


@pytest.mark.parametrize(
    "form", [float, np.float32, np.float64, torch.tensor, np.array, lambda value: torch.tensor([value])]
)
def test_numbers_in_any_form(data: Digits, form: Callable[[float], Any]) -> None:
    result = tune(data, lambda model: form(data.accuracy(model)))
    assert result.met
    assert result.baseline.score is not None
    assert result.baseline.score.value == pytest.approx(data.accuracy(data.model()), abs=1e-6)


@pytest.mark.parametrize(
    "form",
    [lambda hits: hits, lambda hits: hits.numpy(), lambda hits: hits.tolist(), lambda hits: hits.bool()],
)
def test_one_number_per_item_is_paired(data: Digits, form: Callable[[Any], Any]) -> None:
    result = tune(data, lambda model: form(data.hits(model)))
    verdict = result.best.verdict
    assert verdict is not None
    assert verdict.n == len(data.test)
    assert verdict.low is not None
    assert verdict.lost is not None
    assert verdict.gained is not None
    assert verdict.drop == pytest.approx((verdict.lost - verdict.gained) / len(data.test))
    assert " lost and " in str(result)


def test_lower_can_be_better(data: Digits) -> None:
    def loss(model: Any) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(data.test), data.labels))

    result = tune(data, loss, criterion=Relative(0.05, higher_is_better=False))
    assert result.met
    assert result.best.verdict is not None
    assert result.best.verdict.drop <= result.best.verdict.allowed


def test_a_criterion_that_nothing_can_meet(data: Digits) -> None:
    result = tune(data, data.accuracy, criterion=Relative(-1.0))
    assert not result.met
    assert "no quantized plan met the criterion" in result.stopped_because
    assert len(result.trials) > 1
    drops = [trial.verdict.drop for trial in result.trials if trial.verdict is not None]
    assert result.best.verdict is not None
    assert result.best.verdict.drop == min(drops)  # the closest one
    assert str(result).startswith("criterion NOT met")


@pytest.mark.parametrize("name", ["0", "2", "4"])
def test_the_guilty_op_stays_float(data: Digits, name: str) -> None:
    result = tune(data, guilty(name))
    assert result.met
    assert result.plan[name].is_float
    assert name in result.kept
    assert "accuracy" in result.kept[name]
    assert 1 <= len(result.plan.names("int8")) <= 2


def test_keyboard_interrupt_during_a_trial_gives_a_result(data: Digits) -> None:
    result = tune(data, only_on_trials(data, lambda model: raise_(KeyboardInterrupt())))
    assert result.stopped_because.startswith("interrupted by the user")
    assert not result.met
    assert result.best is result.baseline
    assert str(result)


def test_keyboard_interrupt_keeps_what_was_found_before(data: Digits) -> None:
    calls = itertools.count()

    def evaluate(model: Any) -> float:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return guilty("2")(model)

    result = tune(data, evaluate, strategy="basic")
    assert result.stopped_because.startswith("interrupted by the user")
    assert len(result.trials) == 2
    assert not result.met
    assert result.best in result.trials


def test_an_interrupt_that_the_evaluation_swallows_is_not_forgotten(data: Digits) -> None:
    calls = itertools.count()

    def evaluate(model: Any) -> float:
        if next(calls) == 1:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)
        return guilty("2")(model)

    result = tune(data, evaluate, strategy="basic")
    assert result.stopped_because.startswith("interrupted by the user")
    assert len(result.trials) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_keyboard_interrupt_during_the_baseline_goes_through(data: Digits) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(data, lambda model: raise_(KeyboardInterrupt()))


@pytest.mark.parametrize("limit", [1, 2])
def test_max_trials(data: Digits, limit: int) -> None:
    calls = []
    result = tune(data, lambda model: calls.append(1) or (1.0 if len(calls) == 1 else 0.1), max_trials=limit)
    assert len(result.trials) == limit
    assert len(calls) == 1 + limit
    assert result.stopped_because.startswith(f"max_trials reached ({limit})")
    assert not result.met


def test_timeout(data: Digits) -> None:
    def slow(model: Any) -> float:
        time.sleep(0.3)
        return 0.1

    result = tune(data, only_on_trials(data, slow), timeout=0.25, strategy="basic")
    assert result.stopped_because.startswith("timeout reached (0.25 s)")
    assert len(result.trials) <= 1


def test_evaluate_that_leaves_its_mark_on_the_model(data: Digits) -> None:
    def careless(model: Any) -> float:
        value = data.accuracy(model)
        model.train()
        model.register_forward_hook(lambda *_: raise_(RuntimeError("left behind")))
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        model.half()
        return value

    result = tune(data, careless)
    assert result.met
    assert not result.model.training
    assert result.model(data.test).dtype is torch.float32
    assert data.accuracy(result.model) > 0.9


def test_fp32_is_timed_in_turns_with_what_it_is_compared_with(data: Digits) -> None:
    result = tune(data, data.accuracy)
    last = result.best if result.best is not result.baseline else result.trials[-1]
    assert last.spread_ms is not None
    assert last.fp32_spread_ms is not None
    assert last.latency_ms == last.spread_ms.p50
    assert result.baseline.latency_ms == last.fp32_spread_ms.p50
    assert result.baseline.spread_ms == last.fp32_spread_ms


def test_a_slower_model_never_wins_a_race_for_speed(data: Digits) -> None:
    plain = {"performance": {"compile": "never", "iterations": 3, "warmup": 1}}
    result = octune.tune(data.model(), calibration=data.batches(), evaluate=data.accuracy, config=plain)
    assert result.met
    if result.best.form == "fp32":
        assert "fp32 is handed back" in result.stopped_because
        assert result.plan.counts() == {"fp32": 3}
        assert result.kept == {}
        assert torch.equal(result.model(data.test), data.model()(data.test))
    else:
        assert result.speedup is not None
        assert result.speedup > 1.0
        assert result.plan.names("int8")


# -- data in all forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "The calibration data is empty"),
        (iter(()), "The calibration data is empty"),
        (["a sentence", "another"], "batch of str.*tokenize text first"),
        ({"x": 1}, "The calibration data is one dict.*Put a single batch in a list"),
        (torch.zeros(4, 64), "The calibration data is one array.*Put a single batch in a list"),
        (7, "cannot be iterated"),
        ("train.txt", "is the str"),
        ([()], "empty tuple"),
        ([torch.zeros(4, 63)], "cannot be run on"),
        ([(torch.zeros(4, 63), torch.zeros(4))], "cannot be run on"),
        ([np.array(["text"])], "tokenize text first"),
        ([object()], "batch of object. Expected input: an array"),
    ],
)
def test_calibration_data_that_cannot_be_used(data: Digits, bad: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        tune(data, data.accuracy, calibration=bad)


def test_bad_calibration_data_is_found_before_the_baseline_is_scored(data: Digits) -> None:
    evaluated: list[int] = []
    for bad in ([], ["text"]):
        with pytest.raises(DataError):
            octune.tune(
                data.model(),
                calibration=bad,
                evaluate=lambda model: evaluated.append(1) or 1.0,
                evaluation=data.labelled(),
                config=config(),
            )
    assert not evaluated


@pytest.mark.parametrize("bad", [[], "text", [torch.zeros(4, 64)], [(torch.zeros(4, 64), torch.zeros(3))]])
def test_evaluation_data_that_cannot_be_used(data: Digits, bad: Any) -> None:
    with pytest.raises((DataError, EvaluationError)):
        octune.tune(
            data.model(), calibration=data.batches(), metric="accuracy", evaluation=bad, config=config()
        )


def test_a_generator_is_calibration_data_with_a_note(data: Digits) -> None:
    result = tune(data, data.accuracy, calibration=(batch for batch in data.batches()))
    assert result.met
    assert any("generator" in note for note in result.notes)


def test_an_endless_generator_is_calibration_data(data: Digits) -> None:
    result = tune(data, data.accuracy, calibration=itertools.cycle(data.batches()))
    assert result.met


def test_a_function_and_a_loader_are_calibration_data(data: Digits, tuned: Result) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.train[:64]), batch_size=16)
    for calibration in (data.batches, loader):
        assert tune(data, data.accuracy, calibration=calibration).plan == tuned.plan


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: x,
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: (x,),
        lambda x, y: ((x,), y),
        lambda x, y: x.numpy(),
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: x.numpy().astype(np.float64),
        lambda x, y: {"input": x},
        lambda x, y: {"input": x, "labels": y},
        lambda x, y: ({"input": x}, y),
        lambda x, y: {"input": x, "not_an_input": y},
    ],
)
def test_batches_in_every_form(data: Digits, tuned: Result, form: Callable[[Any, Any], Any]) -> None:
    calibration = [form(x, data.labels[: len(x)]) for x in data.batches()]
    result = tune(data, data.accuracy, calibration=calibration)
    assert result.plan == tuned.plan
    assert torch.equal(result.model(data.test), tuned.model(data.test))


def test_batch_encodings(data: Digits) -> None:
    transformers = pytest.importorskip("transformers")

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = data.model()

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
        ) -> OrderedDict[str, torch.Tensor]:
            return OrderedDict(logits=self.net(input_ids.float() / 16))

    def encoded(x: torch.Tensor) -> Any:
        return transformers.BatchEncoding(
            {"input_ids": (x * 16).long(), "attention_mask": torch.ones_like(x).long()}
        )

    result = octune.tune(
        Tokens(),
        calibration=[encoded(x) for x in data.batches()],
        metric="accuracy",
        evaluation=[(encoded(x), y) for x, y in data.labelled()],
        config=config(),
    )
    assert result.met
    assert result.baseline.score is not None
    assert result.baseline.score.value == pytest.approx(data.accuracy(data.model()))
    assert result.baseline.score.n == len(data.test)


def test_a_metric_by_name(data: Digits) -> None:
    result = octune.tune(
        data.model(),
        calibration=data.batches(),
        metric="accuracy",
        evaluation=data.labelled(),
        config=config(),
    )
    assert result.met
    assert result.baseline.score is not None
    assert result.baseline.score.value == pytest.approx(data.accuracy(data.model()))
    assert result.best.verdict is not None
    assert result.best.verdict.low is not None


def test_the_same_data_for_both_is_noted(data: Digits) -> None:
    both = data.labelled()
    result = octune.tune(data.model(), calibration=both, metric="accuracy", evaluation=both, config=config())
    assert any("calibration and evaluation use the same data" in note for note in result.notes)
    assert "same data" in str(result)


def test_without_calibration_data_everything_is_dynamic(data: Digits) -> None:
    result = octune.tune(data.model(), evaluate=data.accuracy, config=config())
    assert result.met
    assert all(scheme.is_dynamic for scheme in result.plan.values())
    assert any("no calibration data" in note for note in result.notes)
    assert result.best.latency_ms is not None  # the input was seen in the evaluation


def test_static_without_calibration_data_is_an_error(data: Digits) -> None:
    with pytest.raises(ConfigError, match=r"approach is static.*there is none"):
        octune.tune(
            data.model(), evaluate=data.accuracy, config={**config(), "quantization": {"approach": "static"}}
        )


def test_several_amounts_of_calibration_data_are_options(data: Digits) -> None:
    scores = iter([1.0, 0.2, 0.3, 0.4, 0.5] + [0.3] * 50)
    more = {**config(), "calibration": {"samples": [16, 64]}}
    result = octune.tune(
        data.model(), calibration=data.batches(), evaluate=lambda model: next(scores), config=more
    )
    assert {trial.samples for trial in result.trials} == {16, 64}
    assert not result.met
    assert result.best.score is not None
    assert result.best.score.value == 0.5
    # The model that is handed over was calibrated on as much data as the trial it stands for.
    fresh = octune.quantize(
        data.model(), calibration=data.batches(result.best.samples // 16), plan=result.plan
    )
    assert torch.equal(result.model(data.test), fresh(data.test))


# -- configuration -------------------------------------------------------------------------------------------


def test_no_way_to_score_is_a_config_error(data: Digits) -> None:
    with pytest.raises(ConfigError, match=r"no way to score the model.*evaluate=fn"):
        octune.tune(data.model())
    with pytest.raises(ConfigError, match="evaluation data is missing"):
        octune.tune(data.model(), calibration=data.batches(), metric="accuracy")


def test_no_model_is_a_config_error(data: Digits) -> None:
    with pytest.raises(ConfigError, match="There is no model"):
        octune.tune(evaluate=data.accuracy)


def test_evaluate_must_be_a_function(data: Digits) -> None:
    with pytest.raises(ConfigError, match="evaluate must be a function"):
        tune(data, 0.9)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [object(), 3, [nn.Linear(2, 2)]])
def test_what_is_no_model(data: Digits, model: Any) -> None:
    with pytest.raises(ModelError, match="no backend knows"):
        tune(data, data.accuracy, model=model)


def test_a_mistyped_key_is_a_config_error(data: Digits) -> None:
    with pytest.raises(ConfigError, match="max_trials"):
        octune.tune(data.model(), evaluate=data.accuracy, config={"tuning": {"max_trial": 3}})


def test_a_strategy_that_is_not_there_is_refused_and_never_ignored(data: Digits) -> None:
    with pytest.raises(ConfigError, match="annealing"):
        tune(data, data.accuracy, strategy="annealing")


def test_limits_on_ops_are_kept(data: Digits) -> None:
    keep = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
    result = octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluate=data.accuracy,
        config={**config(), "quantization": {"ops": {"4": keep}}},
    )
    assert result.plan.names("fp32") == ["4"]
    assert result.kept["4"]
    assert all(trial.plan["4"] == Scheme.fp32() for trial in result.trials)


def test_the_same_seed_gives_the_same_plan_and_the_same_model(data: Digits) -> None:
    runs = [tune(data, guilty("2"), random_seed=7) for _ in range(2)]
    assert runs[0].plan == runs[1].plan
    assert [trial.plan for trial in runs[0].trials] == [trial.plan for trial in runs[1].trials]
    assert torch.equal(runs[0].model(data.test), runs[1].model(data.test))
