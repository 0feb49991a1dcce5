"""Timing in turns, how far a speed-up can be trusted, and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.cost import interleaved, latency, weight_bytes
from octune.cost.latency import (
    ATTEMPTS,
    FP32,
    STRETCHES,
    Latency,
    Speedup,
    Spread,
    Timed,
    Timing,
    compare,
    in_turns,
)
from octune.cost.load import BUSY, Patience
from octune.plan import Op, Scheme


def test_candidates_take_turns_after_their_warm_up() -> None:
    calls: list[str] = []
    times = interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, warmup=2, iterations=3
    )
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b", "a", "b"]
    assert {name: latency.runs for name, latency in times.items()} == {"a": 3, "b": 3}
    assert all(0 <= latency.median_ms <= latency.p90_ms for latency in times.values())


def test_what_is_warm_is_not_warmed_up() -> None:
    calls: list[str] = []
    interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        warmup=2,
        iterations=1,
        already_warm=("a",),
    )
    assert calls == ["b", "b", "a", "b"]


def test_a_warm_up_that_takes_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clock = iter(range(1000))
    monkeypatch.setattr("octune.cost.latency.time.perf_counter", lambda: float(next(clock)))
    interleaved({"a": lambda: calls.append("a")}, warmup=5, seconds=0.0)
    assert len(calls) == 1 + STRETCHES


def test_a_pause_comes_before_every_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("octune.cost.latency.time.sleep", calls.append)
    interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, warmup=1, iterations=2, pause=0.5
    )
    assert calls == ["a", "b", 0.5, "a", 0.5, "b", 0.5, "a", 0.5, "b"]


def test_rounds_go_on_until_the_time_is_over_and_an_interval_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("octune.cost.latency.time.perf_counter", lambda: float(len(calls)))
    assert interleaved({"a": lambda: calls.append(1)}, seconds=0.0)["a"].runs == STRETCHES
    assert interleaved({"a": lambda: calls.append(1)}, seconds=60.0)["a"].runs == 60
    assert interleaved({}, seconds=0.0) == {}


@pytest.mark.parametrize(
    ("values", "median", "p90"),
    [([5.0], 5.0, 5.0), ([1.0, 9.0], 5.0, 9.0), (list(map(float, range(100))), 49.5, 90.0)],
)
def test_median_and_ninth_decile(values: list[float], median: float, p90: float) -> None:
    timed = Latency(tuple(values[::-1]))
    assert (timed.median_ms, timed.p90_ms, timed.runs) == (median, p90, len(values))


def test_the_spread_of_calls_is_in_order_and_plain_data() -> None:
    spread = Latency(tuple(map(float, range(100)))).spread
    assert spread == Spread(10.0, 49.5, 90.0)
    assert Latency((5.0,)).spread == Spread(5.0, 5.0, 5.0)
    timed = Timed(Speedup(2.0, 1.9, 2.1, 0.01), 49.5, spread, Spread(20.0, 99.0, 180.0))
    assert Timed.from_json(json.loads(json.dumps(timed.to_json()))) == timed
    before = {key: value for key, value in timed.to_json().items() if key in ("speed", "ms")}
    assert Timed.from_json(before) == Timed(timed.speed, 49.5)


def test_an_error_of_a_candidate_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved({"a": lambda: 1 / 0})


def test_weight_bytes() -> None:
    ops = [
        Op("fc", "linear", (Scheme.int8(), Scheme.bf16(), Scheme.fp32()), parameters=100),
        Op("odd", "conv2d", parameters=9),
    ]
    assert weight_bytes(ops) == {
        ("fc", Scheme.int8()): 100.0,
        ("fc", Scheme.bf16()): 200.0,
        ("fc", Scheme.fp32()): 400.0,
        ("odd", Scheme.fp32()): 36.0,
    }


# -- how many times faster, and how sure that is -------------------------------------------------------------


def speedup(ratios: Sequence[float], load: float = 0.0) -> Speedup:
    """What comes of these ratios, one for each round."""
    return Speedup.of(Latency(tuple(ratios)), Latency((1.0,) * len(ratios)), load)


def test_the_interval_is_what_six_stretches_of_time_say() -> None:
    assert speedup([2.0, 2.2, 2.1, 1.9, 2.0, 2.3]) == Speedup(2.05, 1.9, 2.3)
    # A round that was hit changes nothing, a stretch that was hit shows.
    assert speedup([2.0, 90.0, 2.0] * STRETCHES) == Speedup(2.0, 2.0, 2.0)
    assert speedup([2.0] * 15 + [90.0] * 3) == Speedup(2.0, 2.0, 90.0)
    assert str(speedup([2.0] * 15 + [3.0] * 3)) == "2.00x [2.00, 3.00]"


def test_few_rounds_have_what_they_saw() -> None:
    assert speedup([2.0, 1.0, 3.0]) == Speedup(2.0, 1.0, 3.0)
    assert str(speedup([2.0])) == "2.00x"


def test_pairs_are_compared_not_sums() -> None:
    """A machine that slows down on the way slows down both."""
    slow, fast = (
        Latency((30.0, 60.0, 90.0, 120.0, 150.0, 180.0)),
        Latency((10.0, 20.0, 30.0, 40.0, 50.0, 60.0)),
    )
    assert Speedup.of(slow, fast) == Speedup(3.0, 3.0, 3.0)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=80), st.floats(0.0, 0.99))
def test_the_ratio_lies_in_its_interval_and_others_only_widen_it(ratios: list[float], load: float) -> None:
    quiet, busy = speedup(ratios), speedup(ratios, load)
    assert busy.low <= quiet.low <= quiet.ratio <= quiet.high <= busy.high
    assert quiet.ratio == busy.ratio
    assert min(ratios) <= quiet.low
    assert quiet.high <= max(ratios)


def test_the_interval_misses_the_true_median_as_rarely_as_it_says() -> None:
    """With slow moments that last for a stretch, too: single calls in place of stretches would miss it nearly
    every time.
    """
    random = np.random.default_rng(0)
    seen = 0
    for _ in range(400):
        moments = np.repeat(random.lognormal(np.log(2.0), 0.1, STRETCHES), 20)
        found = speedup(list(moments * random.lognormal(0.0, 0.02, len(moments))))
        seen += found.low <= 2.0 <= found.high
    assert seen / 400 > 0.94


def test_intervals_that_overlap_are_a_tie() -> None:
    one, other, third = Speedup(2.0, 1.8, 2.2), Speedup(2.3, 2.1, 2.5), Speedup(3.0, 2.6, 3.4)
    assert not one.beats(other)
    assert not other.beats(one)
    assert third.beats(one)
    assert third.beats(other)
    assert not one.beats(third)
    assert one.beats(FP32)
    assert not FP32.beats(FP32)


def test_the_more_others_took_the_less_is_claimed() -> None:
    ratios = [1.8, 1.9, 2.0, 2.0, 2.1, 2.2]
    assert speedup(ratios).beats(FP32)
    assert speedup(ratios, 0.3).beats(FP32)
    assert not speedup(ratios, 0.5).beats(FP32)
    assert str(speedup(ratios, 0.5)) == "2.00x [0.90, 4.40] (others took 50% of the CPU)"


# -- measured again while in doubt ---------------------------------------------------------------------------


class Bench:
    """A machine on which the candidate's speed-up and the load are what they are said to be, attempt by
    attempt.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, ratios: Sequence[float], loads: Sequence[float] = ()
    ) -> None:
        self.measured, self.waits = 0, 0
        self.already_warm: list[set[str]] = []
        self._ratios, self._loads = list(ratios), [*loads, *[0.0] * len(ratios)]
        bench = self

        class Load:
            def __init__(self, *, with_children: bool) -> None: ...

            def __enter__(self) -> Load:
                return self

            def __exit__(self, *exception: object) -> None:
                self.share = bench._loads[bench.measured - 1]
                self.busy = self.share > BUSY

        def interleaved(
            calls: dict[str, Callable[[], object]], *, already_warm: set[str], **timing: object
        ) -> dict[str, Latency]:
            ratio = bench._ratios[bench.measured]
            bench.measured += 1
            bench.already_warm.append(set(already_warm))
            return {"baseline": Latency((ratio,) * STRETCHES), "candidate": Latency((1.0,) * STRETCHES)}

        monkeypatch.setattr(latency, "Load", Load)
        monkeypatch.setattr(latency, "interleaved", interleaved)

    def compare(self, rival: Speedup = FP32, ceiling: float = 99.0, already_warm: bool = False) -> Speedup:
        bench = self

        class Waits(Patience):
            def wait(self) -> None:
                bench.waits += 1

        return compare(
            lambda: None,
            lambda: None,
            Timing(),
            rival=rival,
            ceiling=ceiling,
            patience=Waits(),
            already_warm=already_warm,
        ).speed


def test_what_is_clear_and_quiet_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [2.0])
    assert bench.compare() == Speedup(2.0, 2.0, 2.0)
    assert (bench.measured, bench.waits) == (1, 0)


def test_slower_is_not_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [0.5, 2.0, 2.0])
    found = bench.compare(already_warm=True)
    assert bench.measured == ATTEMPTS
    assert found == Speedup(2.0, 0.5, 2.0)  # all that was quiet counts
    assert bench.already_warm == [{"baseline"}, {"baseline", "candidate"}, {"baseline", "candidate"}]
    assert bench.waits == 0


def test_a_tie_with_its_rival_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rival = Speedup(2.0, 1.8, 2.2)
    assert not Bench(monkeypatch, [2.1] * ATTEMPTS).compare(rival).beats(rival)
    bench = Bench(monkeypatch, [2.5])
    assert bench.compare(rival).beats(rival)
    assert bench.measured == 1


def test_a_disturbed_measurement_is_waited_for_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [15.0, 2.0], [0.6, 0.0])
    assert bench.compare() == Speedup(2.0, 2.0, 2.0)
    assert (bench.measured, bench.waits) == (2, 1)


def test_if_all_were_disturbed_the_least_disturbed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [15.0, 3.0, 0.4], [0.6, 0.5, 0.7])
    found = bench.compare()
    assert found == Speedup(3.0, 1.5, 6.0, 0.5)
    assert found.disturbed
    assert bench.measured == ATTEMPTS


def test_a_gain_beyond_the_ceiling_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [10.0, 1.1, 1.1])
    found = bench.compare(ceiling=1.5)
    assert found.ratio == pytest.approx(1.1)
    assert bench.measured == ATTEMPTS


# -- candidates that time themselves -------------------------------------------------------------------------


def test_turns_are_what_candidates_say_of_them() -> None:
    calls: list[str] = []

    def turn(name: str) -> list[float]:
        calls.append(name)
        return [float(len(calls))]

    turns = in_turns({"a": lambda: turn("a"), "b": lambda: turn("b")}, rounds=2)
    assert calls == ["a", "b", "a", "b"]
    assert turns == {"a": [[1.0], [3.0]], "b": [[2.0], [4.0]]}


def test_a_difference_is_one_that_leaves_out_1() -> None:
    assert Speedup(1.1, 1.05, 1.2).different
    assert Speedup(0.9, 0.8, 0.95).different
    assert not Speedup(1.01, 0.99, 1.03).different
    assert not Speedup(1.02, 1.01, 1.03).wider(0.03).different
    assert Speedup(1.1, 1.05, 1.2).wider(0.03).different
