"""User code is not trusted: it may raise, hang, exit, or return nonsense."""

from __future__ import annotations

import decimal
import fractions
import math
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.errors import DataError, EvaluationError, EvaluationTimeout
from octune.evaluation import guard
from octune.evaluation.guard import as_score, call_limited
from octune.score import Score


def raising(error: BaseException) -> Any:
    def call() -> None:
        raise error

    return call


# -- calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 30])
def test_the_value_comes_back(seconds: float) -> None:
    assert call_limited(lambda: 42, seconds) == 42


@pytest.mark.parametrize("seconds", [0, 30])
def test_an_exception_becomes_an_evaluation_error_with_its_cause(seconds: float) -> None:
    cause = ZeroDivisionError("by zero")
    with pytest.raises(EvaluationError, match="The evaluation raised ZeroDivisionError: by zero") as caught:
        call_limited(raising(cause), seconds)
    assert caught.value.__cause__ is cause


def test_sys_exit_does_not_end_the_run() -> None:
    with pytest.raises(EvaluationError, match="SystemExit: 3"):
        call_limited(lambda: sys.exit(3))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("no labels"), EvaluationError("mine")])
def test_what_already_says_it_all_comes_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        call_limited(raising(error), 30)
    assert caught.value is error


def sleep_long() -> None:
    time.sleep(60)


def test_a_hanging_call_is_broken_off() -> None:
    with pytest.raises(
        EvaluationTimeout, match=r"past the limit of 0.05 s for one trial \(tuning.trial_timeout\)"
    ):
        call_limited(sleep_long, 0.05)


def test_a_call_that_swallows_the_alarm_is_broken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REPEAT", 0.05)
    swallowed = []

    def stubborn() -> None:
        for _ in range(3):
            try:
                sleep_long()
            except Exception as error:
                swallowed.append(error)

    with pytest.raises(EvaluationTimeout):
        call_limited(stubborn, 0.05)
    assert len(swallowed) == 3


def test_the_alarm_and_its_handler_are_put_back() -> None:
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    earlier = signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        handler = signal.getsignal(signal.SIGALRM)
        assert call_limited(lambda: 1, 30) == 1
        with pytest.raises(EvaluationTimeout):
            call_limited(sleep_long, 0.02)
        assert signal.getsignal(signal.SIGALRM) is handler
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 600
        assert rang == []
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *earlier)


def in_other_thread(function: Any) -> Any:
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    return outcome[0]


def test_limits_hold_outside_the_main_thread() -> None:
    release = threading.Event()
    assert in_other_thread(lambda: call_limited(lambda: 42, 30)) == 42
    assert isinstance(in_other_thread(lambda: call_limited(release.wait, 0.05)), EvaluationTimeout)
    release.set()
    error = in_other_thread(lambda: call_limited(raising(ValueError("no")), 30))
    assert type(error) is EvaluationError
    assert "ValueError: no" in str(error)
    assert type(in_other_thread(lambda: call_limited(lambda: sys.exit(2), 30))) is EvaluationError


# -- scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        np.float64(0.5),
        np.float32(0.5),
        np.float16(0.5),
        np.array(0.5),
        np.array([0.5]),
        fractions.Fraction(1, 2),
        decimal.Decimal("0.5"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_number_in_any_form(value: Any) -> None:
    score = as_score(value)
    assert (score.value, score.n, score.items) == (0.5, None, None)
    assert type(score.value) is float


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers(value: Any) -> None:
    assert as_score(value).value == 3.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_one_number_per_item(values: list[float]) -> None:
    for form in (values, np.asarray(values), np.asarray(values, dtype=object)):
        score = as_score(form)
        assert score.n == len(values)
        assert score.items is not None
        assert score.items.tolist() == values
        assert (score.hits is not None) == (set(values) <= {0.0, 1.0})


def test_booleans_per_item_are_hits() -> None:
    score = as_score(np.array([True, False, True, True]))
    assert score.value == 0.75
    assert score.hits is not None
    assert score.hits.tolist() == [1, 0, 1, 1]


def test_a_score_is_taken_as_it_is() -> None:
    score = Score.from_items([1, 0])
    assert as_score(score) is score


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None.*Is a 'return' missing"),
        ("0.9", "returned '0.9', a str"),
        (b"0.9", "a bytes"),
        (True, "returned True, a bool"),
        (np.bool_(True), "a bool"),
        (
            {"accuracy": 0.9, "loss": 1.0},
            r"a dict with the keys \['accuracy', 'loss'\].*Return the one that counts",
        ),
        ((0.9, 1.2), "a tuple of 2.*Return the one that counts"),
        (math.nan, "returned nan, which cannot be compared"),
        (math.inf, "returned inf"),
        (np.float32("nan"), "returned nan"),
        ([0.5, math.nan], "returned nan"),
        (Score.of(math.nan), "returned nan"),
        ([], r"array of shape \(0,\)"),
        (np.zeros((2, 3)), r"array of shape \(2, 3\)"),
        (object(), "returned a object"),
        (1 + 2j, "returned a complex"),
        (["0.9", "0.8"], "returned a list"),
        ([[1.0], [1.0, 2.0]], "returned a list"),
        (np.array([1 + 2j]), "returned a ndarray"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "returned a ndarray"),
        (lambda: 0.9, "returned a function"),
    ],
)
def test_all_else_is_refused_with_a_reason(value: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        as_score(value)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    assert as_score(torch.tensor(0.5)).value == 0.5
    assert as_score(torch.tensor(0.5, requires_grad=True) * 1).value == 0.5
    assert as_score(torch.tensor(0.5, dtype=torch.bfloat16)).value == 0.5
    assert as_score(torch.tensor([1, 0, 1, 1])).value == 0.75
    assert as_score(torch.tensor([True, False])).hits is not None
    with pytest.raises(EvaluationError, match="shape"):
        as_score(torch.zeros(2, 2))
    with pytest.raises(EvaluationError, match="nan"):
        as_score(torch.tensor(math.nan))
