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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

from octune.cost.load import BUSY, Load, Patience

__all__ = [
    "FP32",
    "Latency",
    "Mix",
    "Speedup",
    "Spread",
    "Timed",
    "Timing",
    "compare",
    "in_turns",
    "interleaved",
    "undisturbed",
]

Turn = TypeVar("Turn")
LONG = 0.1  # seconds
STRETCHES = 6
ATTEMPTS = 3


class Spread(NamedTuple):
    """How far the calls of one model lie apart: the milliseconds that 10 %, 50 % and 90 % of them stay
    under.
    """

    p10: float
    p50: float
    p90: float

    @staticmethod
    def plain(spread: Spread | None) -> dict[str, float] | None:
        """Plain data; None stays None."""
        return None if spread is None else spread._asdict()

    @staticmethod
    def read(data: Mapping[str, float] | None) -> Spread | None:
        """The inverse of :meth:`plain`."""
        return None if data is None else Spread(**data)


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
        return self.percentile(0.9)

    @property
    def p99_ms(self) -> float:
        return self.percentile(0.99)

    @property
    def spread(self) -> Spread:
        return Spread(self.percentile(0.1), self.median_ms, self.p90_ms)

    def percentile(self, share: float) -> float:
        """What this share of the calls stays under."""
        return sorted(self.times)[min(self.runs - 1, int(share * self.runs))]


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

    def wider(self, share: float) -> Speedup:
        """The same, of two that may differ by this share for reasons that are not their own."""
        return replace(self, low=self.low * (1 - share), high=self.high / (1 - share))

    @property
    def disturbed(self) -> bool:
        """Whether others kept the machine too busy for a speed to be taken at its word."""
        return self.load > BUSY

    @property
    def different(self) -> bool:
        """Whether it is clear which of the two is faster."""
        return not self.low <= 1 <= self.high

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
class Timed:
    """How a model ran in turns with fp32; journals of earlier versions have the median alone. Where it runs
    on inputs of several sizes, times are their weighted sums, and ``sizes`` has the medians at each.
    """

    speed: Speedup
    latency_ms: float
    spread: Spread | None = None
    fp32_spread: Spread | None = None
    # where there are several: milliseconds of fp32 and of the model at each
    sizes: tuple[tuple[float, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "speed": asdict(self.speed),
            "ms": self.latency_ms,
            "spread": Spread.plain(self.spread),
            "fp32_spread": Spread.plain(self.fp32_spread),
            "sizes": [list(pair) for pair in self.sizes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timed:
        """The inverse of :meth:`to_json`."""
        spread, fp32_spread = (Spread.read(data.get(name)) for name in ("spread", "fp32_spread"))
        sizes = tuple((slow, fast) for slow, fast in data.get("sizes", ()))
        return cls(Speedup(**data["speed"]), data["ms"], spread, fp32_spread, sizes)


@dataclass(frozen=True, slots=True)
class Timing:
    """How latency is measured; see :func:`interleaved`."""

    warmup: int = 2
    iterations: int | None = None
    seconds: float = 0.5


class Mix:
    """Calls on inputs of several sizes as one, whose time is the weighted sum of theirs."""

    def __init__(self, parts: Sequence[tuple[float, Callable[[], object]]]) -> None:
        self._parts = parts
        self._times: list[list[float]] = [[] for _ in parts]

    def __call__(self) -> None:
        for _, call in self._parts:
            call()

    def seconds(self) -> float:
        """Run all of them, each timed by itself."""
        total = 0.0
        for (weight, call), times in zip(self._parts, self._times, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            total += weight * times[-1]
        return total

    @property
    def medians_ms(self) -> list[float]:
        """What one call at each size takes, without weights."""
        return [1e3 * statistics.median(times) for times in self._times]


def _seconds(call: Callable[[], object]) -> float:
    if isinstance(call, Mix):
        return call.seconds()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


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

    def turn(call: Callable[[], object]) -> list[float]:
        times = []
        if calls_per_turn:
            call()
        for _ in range(max(1, calls_per_turn)):
            times.append(_seconds(call) * 1e3)
        return times

    turns = in_turns(
        {name: partial(turn, call) for name, call in candidates.items()},
        rounds=iterations,
        seconds=seconds,
        pause=pause,
    )
    return {name: Latency(tuple(chain.from_iterable(values))) for name, values in turns.items()}


def in_turns(
    candidates: Mapping[str, Callable[[], Turn]],
    *,
    rounds: int | None = None,
    seconds: float = 2.0,
    pause: float = 0.0,
) -> dict[str, list[Turn]]:
    """What each candidate says of its turns, wherever it takes them: here, or in processes of its own.

    ``rounds`` fixes how many there are; otherwise they go on for about ``seconds``, and at least until an
    interval can be told.
    """
    taken: dict[str, list[Turn]] = {name: [] for name in candidates}
    begun = time.perf_counter()
    done = 0
    while done < (rounds or STRETCHES) or (rounds is None and time.perf_counter() - begun < seconds):
        for name, turn in candidates.items():
            time.sleep(pause)
            taken[name].append(turn())
        done += 1
    return taken


def undisturbed(
    measure: Callable[[], dict[str, list[Turn]]],
    enough: Callable[[dict[str, list[Turn]], float], bool],
    *,
    patience: Patience,
    with_children: bool = False,
) -> tuple[dict[str, list[Turn]], float]:
    """Measure up to three times, until nothing disturbed it and it is ``enough``.

    All quiet measurements count together, or the least disturbed if none was quiet. Also returns the share of
    the CPU that others had in those that count.
    """
    measured: list[tuple[float, dict[str, list[Turn]]]] = []
    while True:
        with Load(with_children=with_children) as load:
            turns = measure()
        measured.append((load.share, turns))
        least = min(share for share, _ in measured)
        counted = [(share, turns) for share, turns in measured if share <= max(BUSY, least)]
        together = {name: [turn for _, turns in counted for turn in turns[name]] for name in turns}
        share = max(share for share, _ in counted)
        if len(measured) == ATTEMPTS or (share <= BUSY and enough(together, share)):
            return together, share
        if load.busy:
            patience.wait()


def compare(
    baseline: Callable[[], object],
    candidate: Callable[[], object],
    timing: Timing,
    *,
    rival: Speedup = FP32,
    ceiling: float = math.inf,
    patience: Patience,
    already_warm: bool = False,
) -> Timed:
    """How many times faster than ``baseline`` a candidate is, and how long both take. ``already_warm``: the
    baseline has run before.

    Once is enough if nothing disturbed it and it is clear that the candidate beats its ``rival``, by no more
    than the ``ceiling`` allows. Otherwise it is measured up to three times: that int8 is slower has
    consequences, and what disturbs a timing hits its kernels, whose threads meet more often, harder than
    fp32's. All quiet measurements count together, or the least disturbed if none was quiet.
    """
    calls = {"baseline": baseline, "candidate": candidate}
    known = {"baseline"} if already_warm else set()

    def measure() -> dict[str, list[float]]:
        times = interleaved(
            calls,
            warmup=timing.warmup,
            iterations=timing.iterations,
            seconds=timing.seconds,
            already_warm=known,
        )
        known.update(calls)
        return {name: list(latency.times) for name, latency in times.items()}

    def speed(times: dict[str, list[float]], load: float) -> Speedup:
        return Speedup.of(Latency(tuple(times["baseline"])), Latency(tuple(times["candidate"])), load)

    def clear(times: dict[str, list[float]], load: float) -> bool:
        return speed(times, load).beats(rival) and speed(times, load).ratio <= ceiling

    times, load = undisturbed(measure, clear, patience=patience)
    slow, fast = (Latency(tuple(times[name])) for name in calls)
    return Timed(speed(times, load), fast.median_ms, fast.spread, slow.spread)
