"""tune() against what users really bring: their scoring code, their data, their models. All on a real, small
model.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import octune  # noqa: E402
from octune import Plan, Relative, Result, Scheme  # noqa: E402
from octune.engine.events import Listener  # noqa: E402
from octune.errors import (  # noqa: E402
    ArtifactError,
    ConfigError,
    DataError,
    EvaluationError,
    EvaluationTimeout,
    ModelError,
    PlanError,
)
from tests.digits import Digits, config, network  # noqa: E402


@pytest.fixture(scope="module")
def tuned(data: Digits) -> Result:
    """One ordinary run that many tests look at."""
    return octune.tune(data.model(), calibration=data.batches(), evaluate=data.accuracy, config=config())


def tune(
    data: Digits,
    evaluate: Callable[[Any], Any] | None,
    model: Any = None,
    calibration: Any = None,
    **options: Any,
) -> Result:
    tuning = {
        key: options.pop(key)
        for key in ("trial_timeout", "max_trials", "timeout", "strategy", "random_seed")
        if key in options
    }
    calibration = data.batches() if calibration is None else calibration
    return octune.tune(
        data.model() if model is None else model,
        calibration=calibration,
        evaluate=evaluate,
        config=config(**tuning),
        **options,
    )


def only_on_trials(data: Digits, then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Scores the baseline as it should, and then something else happens."""
    calls = itertools.count()

    def evaluate(model: Any) -> Any:
        return data.accuracy(model) if next(calls) == 0 else then(model)

    return evaluate


def raise_(error: BaseException) -> Any:
    raise error


def guilty(name: str) -> Callable[[Any], float]:
    """As if int8 at this op did all the harm."""
    return lambda model: 0.5 if "Int8" in type(model.get_submodule(name)).__name__ else 1.0


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


# -- the user's model ----------------------------------------------------------------------------------------


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything that must be as it was."""
    return {
        "tensors": {
            name: (t.dtype, t.shape, t.data_ptr(), t.detach().contiguous().view(torch.uint8).tolist())
            for name, t in model.state_dict().items()
        },
        "parameters": {
            name: (id(p), p.requires_grad, p.grad is None) for name, p in model.named_parameters()
        },
        "modules": {
            name: (
                id(m),
                type(m),
                m.training,
                tuple(m._forward_hooks),
                tuple(m._forward_pre_hooks),
                tuple(m._backward_hooks),
                set(m.__dict__),
            )
            for name, m in model.named_modules()
        },
    }


def hooked(model: nn.Sequential) -> nn.Sequential:
    model[0].register_forward_hook(lambda module, args, output: output * 1.0)
    model[2].register_forward_pre_hook(lambda module, args: None)
    return model


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain", lambda model: model),
        ("train mode", lambda model: model.train()),
        ("half weights", lambda model: model.half()),
        ("bfloat16 weights", lambda model: model.bfloat16()),
        ("hooks", hooked),
        ("frozen", lambda model: model.requires_grad_(False)),
        ("one part in train mode", lambda model: [model[2].train(), model][1]),
    ],
)
def test_the_users_model_is_not_changed(data: Digits, name: str, change: Callable[[Any], Any]) -> None:
    model = change(data.model())
    before = fingerprint(model)
    result = tune(data, data.accuracy, model=model)
    assert fingerprint(model) == before
    assert result.met
    assert result.plan.counts() == {"int8": 3}
    assert result.model is not model
    if "train" in name.split()[0]:
        assert any("train mode" in note for note in result.notes)
    if "weights" in name:
        assert any("float32" in note for note in result.notes)


def test_the_users_model_is_not_reached_through_the_result(data: Digits) -> None:
    model = data.model()
    before = fingerprint(model)
    result = tune(
        data, only_on_trials(data, lambda model: raise_(RuntimeError("no"))), model=model, max_trials=1
    )
    assert result.best is result.baseline
    with torch.no_grad():
        for parameter in result.model.parameters():
            parameter.zero_()
    assert fingerprint(model) == before


def test_hooks_are_called_on_the_quantized_model_too(data: Digits) -> None:
    model = data.model()
    # a hook that is part of what the model computes
    model[0].register_forward_hook(lambda module, args, output: output * 0.0)
    result = tune(data, lambda model: 1.0, model=model)
    with torch.no_grad():
        assert torch.allclose(result.model(data.test), model(data.test), atol=0.05)
        assert float(result.model(data.test).std(dim=0).max()) == 0.0


def test_evaluate_in_train_mode_does_not_reach_other_trials(data: Digits) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.norm = data.model(), nn.BatchNorm1d(10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.net(x))

    def careless(model: nn.Module) -> float:
        model.train()  # running statistics are now updated in place
        return data.accuracy(model)

    model = Normed().eval()
    result = tune(data, careless, model=model)
    for found in (result.model, model):
        assert torch.equal(found.norm.running_mean, torch.zeros(10))
        assert int(found.norm.num_batches_tracked) == 0


def test_a_half_model_is_evaluated_with_half_inputs(data: Digits) -> None:
    result = tune(data, lambda model: data.accuracy(lambda x: model(x.half())), model=data.model().half())
    assert result.met


def test_a_linear_that_is_called_by_keyword(data: Digits) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.last = data.model(), nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(input=self.net(x))

    result = tune(data, lambda model: data.accuracy(model.net), model=Keyword())
    assert result.met


def test_a_model_that_cannot_be_copied(data: Digits) -> None:
    model = data.model()
    model.source = (n for n in range(3))  # type: ignore[assignment]
    with pytest.raises(ModelError, match="cannot be copied"):
        tune(data, data.accuracy, model=model)


def test_a_model_with_nothing_to_quantize(data: Digits) -> None:
    result = tune(data, lambda model: 1.0, model=nn.Sequential(nn.ReLU()))
    assert isinstance(result, Result)
    assert result.best is result.baseline
    assert "not smaller than fp32 here, so fp32 is handed back" in result.stopped_because
    assert any("no op that can be quantized" in note for note in result.notes)
    assert torch.equal(result.model(data.test), torch.relu(data.test))
    assert str(result)


def test_a_quantized_model_is_not_quantized_again(data: Digits, tuned: Result) -> None:
    with pytest.raises(ModelError, match="already quantized"):
        tune(data, data.accuracy, model=tuned.model)


def test_an_op_that_calibration_never_saw_says_so(data: Digits) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.unused = data.model(), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    result = tune(data, data.accuracy, model=Branches())
    assert result.kept == {"unused": "never ran in calibration"}
    assert "unused stays fp32: never ran in calibration" in str(result)


def test_nan_in_calibration_data_keeps_everything_float(data: Digits) -> None:
    result = tune(data, data.accuracy, calibration=[torch.full((4, 64), math.nan)])
    assert result.best is result.baseline
    assert all("infinite or NaN" in op.note for op in result.ops)


def test_global_random_state_is_left_alone(data: Digits) -> None:
    model = data.model()
    before = torch.random.get_rng_state()
    octune.tune(
        model,
        calibration=data.batches(),
        evaluate=data.accuracy,
        config={"performance": {"compile": "never", "iterations": 1}},
    )
    assert torch.equal(torch.random.get_rng_state(), before)


# -- quantize ------------------------------------------------------------------------------------------------


def test_quantize_with_calibration(data: Digits, caplog: pytest.LogCaptureFixture) -> None:
    model = data.model()
    before = fingerprint(model)
    quantized = octune.quantize(model, calibration=data.batches(), config=config())
    assert fingerprint(model) == before
    assert {getattr(m, "kind", "") for m in quantized if not isinstance(m, nn.ReLU)} == {"int8_linear"}
    assert data.accuracy(quantized) > 0.9
    assert "accuracy was not checked" in caplog.text


def test_quantize_without_calibration(data: Digits, caplog: pytest.LogCaptureFixture) -> None:
    quantized = octune.quantize(data.model(), config=config())
    assert {getattr(m, "kind", "") for m in quantized if not isinstance(m, nn.ReLU)} == {
        "int8_dynamic_linear"
    }
    assert data.accuracy(quantized) > 0.9
    assert "only dynamic schemes" in caplog.text


def test_quantize_with_a_plan(data: Digits, tuned: Result) -> None:
    quantized = octune.quantize(data.model(), calibration=data.batches(), plan=tuned.plan)
    # model + plan + ranges, and nothing else
    assert torch.equal(quantized(data.test), tuned.model(data.test))
    part = octune.quantize(data.model(), plan=Plan({"0": Scheme.int8("dynamic")}))
    assert type(part[2]) is nn.Linear
    as_mapping = octune.quantize(data.model(), plan={"0": Scheme.int8("dynamic")})  # type: ignore[arg-type]
    assert as_mapping[0].kind == "int8_dynamic_linear"


def test_quantize_with_an_impossible_plan(data: Digits) -> None:
    with pytest.raises(PlanError, match="'fc', which the model does not have"):
        octune.quantize(data.model(), plan=Plan({"fc": Scheme.fp32()}))
    with pytest.raises(PlanError, match="needs calibration data"):
        octune.quantize(data.model(), plan=Plan({"0": Scheme.int8()}))


# -- save and load -------------------------------------------------------------------------------------------

LOAD = """
import sys, numpy as np, octune, torch
torch.set_num_threads(1)
model = octune.load(sys.argv[1])
x = torch.from_numpy(np.load(sys.argv[2]))
with torch.no_grad():
    np.save(sys.argv[3], model(x).numpy())
"""


@pytest.fixture(scope="module")
def saved(tuned: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned.save(tmp_path_factory.mktemp("models") / "digits")


def copy_of(saved: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir(parents=True)
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_saved_model_loads_in_a_process_that_knows_nothing(
    data: Digits, tuned: Result, saved: Path, tmp_path: Path
) -> None:
    # The digits are sixteenths, which lie exactly between two uint8 values: a little noise, so that no
    # rounding of ties has a say.
    x = data.test + 1e-3 * torch.randn(data.test.shape, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", x.numpy())
    names = [str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    done = subprocess.run([sys.executable, "-c", LOAD, *names], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        assert np.array_equal(np.load(tmp_path / "y.npy"), tuned.model(x).numpy())


def test_a_saved_model_loads_with_a_factory(data: Digits, tuned: Result, saved: Path) -> None:
    model = octune.load(saved, factory=network)
    assert isinstance(model, nn.Sequential)
    assert torch.equal(model(data.test), tuned.model(data.test))


def test_the_wrong_factory_is_refused(saved: Path) -> None:
    with pytest.raises(ArtifactError):
        octune.load(saved, factory=lambda: nn.Sequential(nn.Linear(64, 10)))


def test_a_manifest_tells_the_story(saved: Path, tuned: Result) -> None:
    manifest = json.loads((saved / "octune.json").read_text())
    assert Plan.from_json(manifest["plan"]) == tuned.plan
    assert manifest["plan_digest"] == tuned.plan.digest
    assert manifest["met"] is True
    assert not [path for path in saved.iterdir() if path.suffix in (".pkl", ".pickle", ".pt", ".bin")]


@pytest.mark.parametrize("harm", ["truncated", "tampered", "emptied", "deleted"])
def test_a_damaged_file_is_refused(saved: Path, tmp_path: Path, harm: str) -> None:
    for name in sorted(path.name for path in saved.iterdir() if path.name != "octune.json"):
        folder = copy_of(saved, tmp_path / name)
        content = (folder / name).read_bytes()
        middle = len(content) // 2
        if harm == "deleted":
            (folder / name).unlink()
        elif harm == "tampered":
            (folder / name).write_bytes(
                content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            )
        else:
            (folder / name).write_bytes(content[:-1] if harm == "truncated" else b"")
        with pytest.raises(ArtifactError, match=name):
            octune.load(folder)


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_truncated_manifest_is_refused(saved: Path, tmp_path: Path, length: int) -> None:
    folder = copy_of(saved, tmp_path)
    path = folder / "octune.json"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ArtifactError, match=r"octune\.json"):
        octune.load(folder)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "null",
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"../x": "0"}}',
        '{"format": 99, "files": {}}',
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(saved: Path, tmp_path: Path, content: str) -> None:
    folder = copy_of(saved, tmp_path)
    (folder / "octune.json").write_text(content)
    with pytest.raises(ArtifactError):
        octune.load(folder)


def test_a_tampered_manifest_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    manifest = json.loads((folder / "octune.json").read_text())
    layer = next(iter(manifest["backend"]["layers"].values()))
    layer["settings"]["scale"] *= 2
    (folder / "octune.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError):
        octune.load(folder, factory=network)


def test_what_is_no_saved_model(tmp_path: Path) -> None:
    for folder, said in ((tmp_path, "is not a saved model"), (tmp_path / "none", "There is no folder")):
        with pytest.raises(ArtifactError, match=said):
            octune.load(folder)


def test_saving_does_not_overwrite_without_being_told(tuned: Result, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        tuned.save(saved)
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(ArtifactError, match="not a saved model"):
        tuned.save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()
    folder = tuned.save(tmp_path / "new" / "folder")
    assert tuned.save(folder, overwrite=True) == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == ["folder"]  # nothing is left lying around


def test_saving_where_nothing_can_be_written(tuned: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError):
        tuned.save(tmp_path / "file" / "model")


def test_the_fp32_model_can_be_saved_when_it_is_what_was_handed_back(data: Digits, tmp_path: Path) -> None:
    result = tune(data, only_on_trials(data, lambda model: raise_(RuntimeError("no"))), max_trials=1)
    model = octune.load(result.save(tmp_path / "model"))
    with torch.no_grad():
        assert torch.allclose(model(data.test), data.model()(data.test), atol=1e-6)


def test_a_model_tuned_without_calibration_data_can_be_loaded(data: Digits, tmp_path: Path) -> None:
    result = octune.tune(data.model(), evaluate=data.accuracy, config=config())
    model = octune.load(result.save(tmp_path / "model"))
    with torch.no_grad():
        assert torch.allclose(model(data.test), result.model(data.test), atol=1e-5)


def test_what_quantize_returns_can_be_saved(data: Digits, tmp_path: Path) -> None:
    quantized = octune.quantize(data.model(), calibration=data.batches(), config=config())
    octune.save(quantized, tmp_path / "model")
    loaded = octune.load(tmp_path / "model", factory=network)
    assert torch.equal(loaded(data.test), quantized(data.test))
    told = json.loads((tmp_path / "model" / "octune.json").read_text())
    assert told["met"] is False
    assert "accuracy was not checked" in told["stopped_because"]
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        octune.save(quantized, tmp_path / "model")
    with pytest.raises(ArtifactError, match=r"Sequential is not what octune\.quantize returned"):
        octune.save(data.model(), tmp_path / "other")
    maker = weakref.ref(quantized)
    del quantized
    gc.collect()
    assert maker() is None, "what is remembered keeps the model alive"
