"""When a run stops, and what it says."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from octune.engine.stop import Stop


def test_it_goes_on_until_there_is_a_reason() -> None:
    stop = Stop(max_trials=2)
    assert stop.reason == ""
    assert stop.left is None
    stop.trials += 2
    assert stop.reason == "max_trials reached (2)"


def test_the_time_budget() -> None:
    stop = Stop(timeout=100)
    assert stop.reason == ""
    assert stop.left is not None
    assert 0 < stop.left <= 100
    stop.started = time.monotonic() - 101
    assert stop.left == 0.0
    assert stop.reason == "timeout reached (100 s)"
    assert stop.seconds >= 101


def test_the_user_has_the_last_word() -> None:
    stop = Stop(timeout=1, max_trials=1, trials=1, interrupted=True)
    assert stop.reason == "interrupted by the user"


def test_an_interrupt_is_raised_and_remembered() -> None:
    stop = Stop()
    with stop.remembering_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.reason == "interrupted by the user"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_others_stays() -> None:
    rang: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: rang.append(signum))
    try:
        stop = Stop()
        with stop.remembering_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert rang == [signal.SIGINT]
        assert stop.reason == ""
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_is_changed() -> None:
    seen: list[object] = []

    def work() -> None:
        with Stop().remembering_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
