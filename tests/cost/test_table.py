"""Timing of ops: once for equal kernels, in rounds, and with doubts where int8 seems slower."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from octune.calibration import Observer, Ranges
from octune.cost import table
from octune.cost.table import DOUBTS, ROUNDS, measure_ops
from octune.plan import Op, Scheme
from octune.repair import BIAS, SMOOTH

INT8, MSE, FP32 = Scheme.int8(), Scheme.int8(range_method="mse"), Scheme.fp32()
CORRECTED, SMOOTHED = Scheme.int8(repairs=(BIAS,)), Scheme.int8(repairs=(SMOOTH,))


class Stopwatch:
    """Answers with the times it was given, in turn."""

    def __init__(self, times: dict[Scheme, list[float]]) -> None:
        self.times, self.asked = times, Counter[tuple[str, Scheme]]()

    def measure(self, op: Op, scheme: Scheme, ranges: Ranges) -> float:
        self.asked[op.name, scheme] += 1
        times = self.times[scheme]
        return times.pop(0) if len(times) > 1 else times[0]


def ranges(*names: str) -> Ranges:
    observer = Observer()
    observer.update(np.ones((2, 4), np.float32))
    stats = observer.stats()
    assert stats is not None
    return Ranges(dict.fromkeys(names, stats), 2)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAUSE", 0.0)


def test_equal_kernels_of_equal_ops_are_timed_once() -> None:
    schemes = (INT8, MSE, CORRECTED, SMOOTHED, FP32)
    ops = [Op(name, "linear", schemes, 16, "Linear(4, 4)") for name in ("a", "b")] + [Op("odd", "conv2d")]
    watch = Stopwatch({INT8: [1.0], SMOOTHED: [1.2], FP32: [3.0]})
    values = measure_ops(watch, ops, ranges("a", "b", "odd"))  # type: ignore[arg-type]
    assert values == {(op, s): ms for op in "ab" for s, ms in ((INT8, 1.0), (MSE, 1.0), (CORRECTED, 1.0), (SMOOTHED, 1.2), (FP32, 3.0))}
    assert watch.asked == {("a", scheme): ROUNDS for scheme in (INT8, SMOOTHED, FP32)}


def test_the_least_of_several_rounds_counts() -> None:
    watch = Stopwatch({INT8: [9.0, 1.0, 5.0], FP32: [3.0]})
    assert measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))["a", INT8] == 1.0  # type: ignore[arg-type]


def test_that_int8_is_slower_must_show_again() -> None:
    watch = Stopwatch({INT8: [9.0] * ROUNDS + [1.0], FP32: [3.0]})
    assert measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))["a", INT8] == 1.0  # type: ignore[arg-type]
    assert watch.asked["a", INT8] == ROUNDS + 1
    watch = Stopwatch({INT8: [9.0], FP32: [3.0]})
    assert measure_ops(watch, [Op("a", "linear", (INT8, FP32))], ranges("a"))["a", INT8] == 9.0  # type: ignore[arg-type]
    assert watch.asked["a", INT8] == ROUNDS + DOUBTS


def test_ops_that_never_ran_are_not_timed() -> None:
    assert measure_ops(Stopwatch({}), [Op("a", "linear", (INT8, FP32))], ranges("b")) == {}  # type: ignore[arg-type]
