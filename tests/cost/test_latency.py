"""Timing in turns, bytes, and the machine."""

from __future__ import annotations

import pytest

from octune.cost import interleaved, weight_bytes
from octune.cost.latency import _summary
from octune.plan import Op, Scheme


def test_candidates_take_turns_after_their_warm_up() -> None:
    calls: list[str] = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, warmup=2, iterations=3)
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b", "a", "b"]
    assert {name: latency.runs for name, latency in times.items()} == {"a": 3, "b": 3}
    assert all(0 <= latency.median_ms <= latency.p90_ms for latency in times.values())


def test_what_is_warm_is_not_warmed_up() -> None:
    calls: list[str] = []
    interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, warmup=2, iterations=1, warm=("a",))
    assert calls == ["b", "b", "a", "b"]


def test_a_warm_up_that_takes_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clock = iter(range(1000))
    monkeypatch.setattr("octune.cost.latency.time.perf_counter", lambda: float(next(clock)))
    interleaved({"a": lambda: calls.append("a")}, warmup=5, seconds=0.0)
    assert len(calls) == 1 + 3


def test_a_pause_comes_before_every_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("octune.cost.latency.time.sleep", calls.append)
    interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, warmup=1, iterations=2, pause=0.5)
    assert calls == ["a", "b", 0.5, "a", 0.5, "b", 0.5, "a", 0.5, "b"]


def test_at_least_three_and_at_most_fifty_rounds() -> None:
    assert interleaved({"a": lambda: None}, seconds=0.0)["a"].runs == 3
    assert interleaved({"a": lambda: None}, seconds=60.0)["a"].runs == 50
    assert interleaved({}, seconds=0.0) == {}


@pytest.mark.parametrize(
    ("values", "median", "p90"), [([5.0], 5.0, 5.0), ([1.0, 9.0], 5.0, 9.0), (list(map(float, range(100))), 49.5, 90.0)]
)
def test_median_and_ninth_decile(values: list[float], median: float, p90: float) -> None:
    latency = _summary(values[::-1])
    assert (latency.median_ms, latency.p90_ms, latency.runs) == (median, p90, len(values))


def test_an_error_of_a_candidate_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved({"a": lambda: 1 / 0})


def test_weight_bytes() -> None:
    ops = [Op("fc", "linear", (Scheme.int8(), Scheme.bf16(), Scheme.fp32()), parameters=100), Op("odd", "conv2d", parameters=9)]
    assert weight_bytes(ops) == {
        ("fc", Scheme.int8()): 100.0,
        ("fc", Scheme.bf16()): 200.0,
        ("fc", Scheme.fp32()): 400.0,
        ("odd", Scheme.fp32()): 36.0,
    }
