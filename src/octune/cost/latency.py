"""Timing that survives a busy machine, or says that it did not: candidates take turns, and a speed-up has an
interval.

    times = interleaved({"fp32": run_fp32, "int8": run_int8})
    speed = Speedup.of(times["fp32"], times["int8"])        # 3.54x [3.31, 3.80]
    speed.beats(other)                                      # the only way in which one speed is better than
                                                            another

:func:`compare` does that, and measures again while in doubt.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from octune.cost.load import BUSY, Load, Patience

__all__ = ["FP32", "Latency", "Speedup", "Timing", "compare", "interleaved"]

LONG = 0.1  # seconds
STRETCHES = 6
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of the timed calls, in their order; the median, and what nine out of ten calls stay
    under.
    """

    times: tuple[float, ...]

    @property
    def runs(self) -> int:
        return len(self.times)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times)

    @property
    def p90_ms(self) -> float:
        return sorted(self.times)[min(self.runs - 1, int(0.9 * self.runs))]


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster than another one candidate ran in turns with it: the middle, and the interval it
    lies in.

    ``load`` is the share of the CPU that other processes took meanwhile.
    """

    ratio: float
    low: float
    high: float
    load: float = 0.0

    @classmethod
    def of(cls, slow: Latency, fast: Latency, load: float = 0.0) -> Speedup:
        """Compare call by call, in six stretches of time, each with its median.

        The median of all lies between the least and the greatest of six with a chance of 97 % (all but 2 in
        2^6), whatever the distribution. Single calls in their place would say more than they know: a slow
        moment lasts for many of them. The share that others had of the CPU may have been taken from one side
        alone, so the interval is wider by that.
        """
        ratios = [before / after for before, after in zip(slow.times, fast.times, strict=True)]
        count = min(STRETCHES, len(ratios))
        ends = [len(ratios) * number // count for number in range(count + 1)]
        medians = [statistics.median(ratios[begin:end]) for begin, end in pairwise(ends)]
        return cls(statistics.median(medians), min(medians) * (1 - load), max(medians) / (1 - load), load)

    @property
    def disturbed(self) -> bool:
        """Whether others kept the machine too busy for a speed to be taken at its word."""
        return self.load > BUSY

    def beats(self, other: Speedup) -> bool:
        """Whether it is clearly faster. Intervals that overlap are a tie: it might be noise."""
        return self.low > other.high

    def __str__(self) -> str:
        interval = f" [{self.low:.2f}, {self.high:.2f}]" if self.low < self.high else ""
        return f"{self.ratio:.2f}x{interval}" + (
            f" (others took {self.load:.0%} of the CPU)" if self.disturbed else ""
        )


FP32 = Speedup(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """How latency is measured; see :func:`interleaved`."""

    warmup: int = 2
    iterations: int | None = None
    seconds: float = 0.5


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    warmup: int = 2,
    iterations: int | None = None,
    seconds: float = 2.0,
    pause: float = 0.0,
    calls_per_turn: int = 0,
    already_warm: Collection[str] = (),
) -> dict[str, Latency]:
    """Time the candidates in turns: a slow moment of the machine hits all of them.

    ``iterations`` fixes the number of rounds; otherwise rounds go on for about ``seconds``, and at least
    until an interval can be told; a warm-up then ends when it has taken long. Those in ``already_warm`` have
    none. ``pause`` seconds before every turn let the threads of the one before come to rest: some runtimes'
    threads spin for a while. A turn is one timed call; with ``calls_per_turn`` it is that many, behind one
    that is not timed, as for a model that serves alone.
    """
    for name, call in candidates.items():
        start = time.perf_counter()
        for _ in range(0 if name in already_warm else max(1, warmup)):
            call()
            if iterations is None and time.perf_counter() - start > LONG:
                break
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begun = time.perf_counter()
    rounds = 0
    while rounds < (iterations or STRETCHES) or (
        iterations is None and time.perf_counter() - begun < seconds
    ):
        for name, call in candidates.items():
            time.sleep(pause)
            if calls_per_turn:
                call()
            for _ in range(max(1, calls_per_turn)):
                start = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - start) * 1e3)
        rounds += 1
    return {name: Latency(tuple(values)) for name, values in times.items()}


def compare(
    baseline: Callable[[], object],
    candidate: Callable[[], object],
    timing: Timing,
    *,
    rival: Speedup = FP32,
    ceiling: float = math.inf,
    patience: Patience,
    already_warm: bool = False,
) -> tuple[Speedup, Latency]:
    """How many times faster than ``baseline`` a candidate is, and how long it takes. ``already_warm``: the
    baseline has run before.

    Once is enough if nothing disturbed it and it is clear that the candidate beats its ``rival``, by no more
    than the ``ceiling`` allows. Otherwise it is measured up to three times: that int8 is slower has
    consequences, and what disturbs a timing hits its kernels, whose threads meet more often, harder than
    fp32's. All quiet measurements count together, or the least disturbed if none was quiet.
    """
    calls = {"baseline": baseline, "candidate": candidate}
    known = {"baseline"} if already_warm else set()
    measured: list[tuple[float, dict[str, Latency]]] = []
    while True:
        with Load() as load:
            times = interleaved(
                calls,
                warmup=timing.warmup,
                iterations=timing.iterations,
                seconds=timing.seconds,
                already_warm=known,
            )
        measured.append((load.share, times))
        known = set(calls)
        least = min(share for share, _ in measured)
        counted = [(share, times) for share, times in measured if share <= max(BUSY, least)]
        slow, fast = (
            Latency(tuple(ms for _, times in counted for ms in times[name].times)) for name in calls
        )
        speed = Speedup.of(slow, fast, max(share for share, _ in counted))
        if len(measured) == ATTEMPTS or (
            not speed.disturbed and speed.beats(rival) and speed.ratio <= ceiling
        ):
            return speed, fast
        if load.busy:
            patience.wait()
