"""When a run stops, and what it says."""

from __future__ import annotations

import time

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
