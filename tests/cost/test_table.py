"""Timing of ops: once for equal kernels, in rounds, and with doubts where int8 seems slower or the machine is
busy.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octune.calibration import Observer, Ranges
from octune.cost import cache, table
from octune.cost.table import DOUBTS, ROUNDS, SLACK, ceiling, measure_ops
from octune.plan import Op, Plan, Scheme
from octune.repair import BIAS, SMOOTH

INT8, MSE, FP32 = Scheme.int8(), Scheme.int8(range_method="mse"), Scheme.fp32()
CORRECTED, SMOOTHED = Scheme.int8(repairs=(BIAS.name,)), Scheme.int8(repairs=(SMOOTH.name,))


class Stopwatch:
    """Its kernels take the times that it was given, in turn."""

    def __init__(self, times: dict[Scheme, list[float]], version: str = "1") -> None:
        self.times, self.version, self.asked = times, version, Counter[tuple[str, Scheme]]()

    def environment(self) -> dict[str, object]:
        return {"framework": "stopwatch", "version": self.version}

    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> Callable[[], float]:
        def run() -> float:
            self.asked[op.name, scheme] += 1
            times = self.times[scheme]
            if self.asked[op.name, scheme] == 1:  # the warm-up
                return math.nan
            return times.pop(0) if len(times) > 1 else times[0]

        return run


def ranges(*names: str) -> Ranges:
    observer = Observer()
    observer.update(np.ones((2, 4), np.float32))
    stats = observer.stats()
    assert stats is not None
    return Ranges(dict.fromkeys(names, stats), 2)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel takes what it says."""
    monkeypatch.setattr(table, "PAUSE", 0.0)
    monkeypatch.setattr(table, "_least", lambda call: call())


def test_equal_kernels_of_equal_ops_are_timed_once() -> None:
    schemes = (INT8, MSE, CORRECTED, SMOOTHED, FP32)
    ops = [Op(name, "linear", schemes, 16, "Linear(4, 4)") for name in ("a", "b")] + [Op("odd", "conv2d")]
    watch = Stopwatch({INT8: [1.0], SMOOTHED: [1.2], FP32: [3.0]})
    values = measure_ops(watch, ops, ranges("a", "b", "odd"))  # type: ignore[arg-type]
    assert values == {
        (op, s): ms
        for op in "ab"
        for s, ms in ((INT8, 1.0), (MSE, 1.0), (CORRECTED, 1.0), (SMOOTHED, 1.2), (FP32, 3.0))
    }
    assert watch.asked == {("a", scheme): 1 + ROUNDS for scheme in (INT8, SMOOTHED, FP32)}


def test_the_least_of_several_rounds_counts() -> None:
    watch = Stopwatch({INT8: [9.0, 1.0, 5.0], FP32: [3.0]})
    assert measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))["a", INT8] == 1.0  # type: ignore[arg-type]


def test_that_int8_is_slower_must_show_again() -> None:
    watch = Stopwatch({INT8: [9.0] * ROUNDS + [1.0], FP32: [3.0]})
    assert measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))["a", INT8] == 1.0  # type: ignore[arg-type]
    assert watch.asked["a", INT8] == 1 + ROUNDS + 1
    watch = Stopwatch({INT8: [9.0], FP32: [3.0]})
    assert measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))["a", INT8] == 9.0  # type: ignore[arg-type]
    assert watch.asked["a", INT8] == 1 + ROUNDS + DOUBTS


class Noise:
    """A load that is what it is said to be, one measurement after the other."""

    def __init__(self, *busy: bool) -> None:
        self._next = iter(busy)

    def __call__(self) -> Noise:
        return self

    def __enter__(self) -> Noise:
        self.busy = next(self._next)
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def test_on_a_busy_machine_there_are_more_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "Load", Noise(True, False))
    watch = Stopwatch({INT8: [9.0] * ROUNDS + [1.0], FP32: [9.5] * ROUNDS + [3.0]})
    values = measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))  # type: ignore[arg-type]
    assert values == {("a", INT8): 1.0, ("a", FP32): 3.0}
    assert watch.asked["a", INT8] == 1 + 2 * ROUNDS


def test_many_ops_are_timed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TOGETHER", 2)
    ops = [Op(f"op{i}", "linear", (INT8, FP32), i) for i in range(5)]
    watch = Stopwatch({INT8: [1.0], FP32: [3.0]})
    values = measure_ops(watch, ops, ranges(*(op.name for op in ops)))  # type: ignore[arg-type]
    assert list(watch.asked) == [(op.name, scheme) for op in ops for scheme in (INT8, FP32)]
    assert values == {(op.name, scheme): ms for op in ops for scheme, ms in ((INT8, 1.0), (FP32, 3.0))}


def test_the_fastest_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    clock = iter([0.0, 0.0, 0.004, 0.004, 0.005, 0.005, 0.008, 0.008, 0.009, 0.009, 0.02, 1.0])
    monkeypatch.setattr("octune.cost.table.time.perf_counter", lambda: next(clock))
    assert table._least(lambda: None) == pytest.approx(1.0)


def test_ops_that_never_ran_are_not_timed() -> None:
    assert measure_ops(Stopwatch({}), [Op("a", "linear", (INT8, FP32))], ranges("b")) == {}  # type: ignore[arg-type]


# -- kept from run to run ------------------------------------------------------------------------------------

OP = Op("a", "linear", (INT8, FP32), 16, "Linear(4, 4)")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTUNE_CACHE", str(tmp_path))
    monkeypatch.delenv("OCTUNE_COST_CACHE")
    return tmp_path / "costs"


def timed(watch: Stopwatch, op: Op = OP) -> dict[tuple[str, Scheme], float]:
    return measure_ops(watch, [op], ranges(op.name))  # type: ignore[arg-type]


def test_a_second_run_decides_on_the_numbers_of_the_first(cached: Path) -> None:
    first = timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))
    again = Stopwatch({INT8: [7.0], FP32: [8.0]})
    assert timed(again) == first
    assert not again.asked
    assert timed(again, replace(OP, name="elsewhere")) == {
        ("elsewhere", scheme): ms for (_, scheme), ms in first.items()
    }


@pytest.mark.parametrize(
    "other",
    [
        replace(OP, signature="Linear(8, 2)"),
        replace(OP, parameters=17),
        replace(OP, schemes=(*OP.schemes, Scheme.bf16())),
    ],
    ids=["signature", "size", "one more kernel"],
)
def test_another_op_is_timed_and_all_its_kernels_together(cached: Path, other: Op) -> None:
    timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))
    watch = Stopwatch({INT8: [2.0], FP32: [4.0], Scheme.bf16(): [3.0]})
    assert timed(watch, other)["a", INT8] == 2.0
    assert set(watch.asked) == {("a", scheme) for scheme in other.schemes}


def test_another_version_is_another_machine(cached: Path) -> None:
    timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))
    assert timed(Stopwatch({INT8: [2.0], FP32: [4.0]}, version="2"))["a", INT8] == 2.0
    assert len(list(cached.glob("*.json"))) == 2


def later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    now = time.time() + 3600 * hours
    monkeypatch.setattr(cache.time, "time", lambda: now)


def test_what_was_surprising_is_believed_for_an_hour(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = timed(Stopwatch({INT8: [9.0], FP32: [3.0]}))
    assert timed(Stopwatch({INT8: [1.0], FP32: [3.0]})) == slow
    later(monkeypatch, 1.1)
    assert timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))["a", INT8] == 1.0


@pytest.mark.parametrize(("busy", "kept"), [((True, True), False), ((True, False), True), ((False,), True)])
def test_what_was_timed_on_a_busy_machine_is_believed_for_an_hour(
    cached: Path, monkeypatch: pytest.MonkeyPatch, busy: tuple[bool, ...], kept: bool
) -> None:
    monkeypatch.setattr(table, "Load", Noise(*busy, False))
    first = timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))
    later(monkeypatch, 0.9)
    assert timed(Stopwatch({INT8: [2.0], FP32: [3.0]})) == first
    later(monkeypatch, 0.2)
    assert timed(Stopwatch({INT8: [2.0], FP32: [3.0]}))["a", INT8] == (1.0 if kept else 2.0)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"conditions": {}}', '{"conditions": {}, "milliseconds": {"a": 1}}']
)
def test_a_damaged_file_is_as_good_as_none(cached: Path, text: str) -> None:
    timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))
    (path,) = cached.glob("*.json")
    path.write_text(text)
    assert timed(Stopwatch({INT8: [2.0], FP32: [3.0]}))["a", INT8] == 2.0
    assert timed(Stopwatch({INT8: [5.0], FP32: [6.0]}))["a", INT8] == 2.0  # and it was written anew


def test_old_timings_are_forgotten(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))
    later(monkeypatch, 24)
    assert timed(Stopwatch({INT8: [2.0], FP32: [3.0]}))["a", INT8] == 1.0
    later(monkeypatch, 60 * 24)
    assert timed(Stopwatch({INT8: [2.0], FP32: [3.0]}))["a", INT8] == 2.0


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTUNE_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv("OCTUNE_COST_CACHE")
    assert timed(Stopwatch({INT8: [1.0], FP32: [3.0]}))["a", INT8] == 1.0


# -- what a whole plan can gain ------------------------------------------------------------------------------

COSTS = {("a", INT8): 1.0, ("a", FP32): 4.0, ("b", INT8): 5.0, ("b", FP32): 4.0, ("c", FP32): 2.0}


@pytest.mark.parametrize(
    ("plan", "gain"),
    [
        ({}, 1.0),
        ({"a": FP32}, 1.0),
        ({"a": INT8}, 10.0 / 7.0),
        ({"a": INT8, "b": INT8}, 10.0 / 7.0),  # what costs time gains none
        ({"b": INT8}, 1.0),
    ],
)
def test_a_plan_gains_no_more_than_its_ops(plan: dict[str, Scheme], gain: float) -> None:
    assert ceiling(Plan(plan), COSTS) == pytest.approx(SLACK * gain)


def test_one_op_of_many_cannot_make_a_model_many_times_faster() -> None:
    costs = {(f"op{number}", scheme): ms for number in range(53) for scheme, ms in ((INT8, 0.1), (FP32, 1.0))}
    assert ceiling(Plan({"op0": INT8}), costs) < 1.1 * SLACK
    assert ceiling(Plan({f"op{number}": INT8 for number in range(53)}), costs) == pytest.approx(10.0 * SLACK)


def test_without_the_costs_there_is_no_ceiling() -> None:
    assert ceiling(Plan({"a": INT8}), {}) == math.inf
    assert ceiling(Plan({"c": INT8}), COSTS) == math.inf
