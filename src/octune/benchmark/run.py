"""Times models side by side and in turns, each in processes of its own.

    outcome = bench(["bert.onnx", "bert-int8"], batch=(1, 8), sequence=(128,))
    print(outcome)

A round is one turn of each model, so a slow moment of the machine hits all of them. In a turn all instances
of a model run at once, each pinned to its own cores. The statistics are those of :mod:`octune.cost.latency`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from octune.benchmark.instance import Instance, ask_all
from octune.benchmark.outcome import Bench, Row, Subject
from octune.benchmark.pinning import placed
from octune.cost.latency import LONG, Latency, Speedup, in_turns, undisturbed
from octune.cost.load import Patience
from octune.errors import ConfigError, DataError, OctuneError, UnsupportedError
from octune.machine import probe_machine

__all__ = ["bench"]

# Seconds before every turn: threads of some runtimes spin for a while after a call.
PAUSE = 0.02
# Two processes with the same model differ by as much in speed, by where their memory happens to lie.
STARTS = 0.03
# Seconds in which all instances hear that their turn begins.
NOTICE = 0.005


@dataclass(frozen=True)
class Turn:
    """What the instances of a model say of one turn: milliseconds of every call, and calls per second of all
    together.
    """

    ms: tuple[float, ...]
    rate: float
    memory: float


@dataclass(frozen=True)
class Size:
    """How large the inputs are."""

    batch: int
    sequence: int | None

    def __str__(self) -> str:
        return f"batch {self.batch}" + (f", sequence {self.sequence}" if self.sequence else "")


@dataclass(frozen=True)
class Pace:
    """How long it is timed; ``iterations`` fixes the number of calls."""

    seconds: float
    warmup: int
    iterations: int | None

    def __post_init__(self) -> None:
        if self.seconds < 0 or self.warmup < 0 or (self.iterations is not None and self.iterations < 1):
            raise ConfigError(
                "seconds and warmup must be at least 0, and iterations at least 1. Got "
                f"{self.seconds:g}, {self.warmup} and {self.iterations}."
            )


class Team:
    """The instances of one model."""

    def __init__(self, name: str, instances: Sequence[Instance]) -> None:
        self.name, self._instances = name, instances

    def open(self) -> Subject:
        """Open it in all processes at once."""
        answers = ask_all(self._instances, "open")
        for instance, answer in zip(self._instances, answers, strict=True):
            if set(answer["cores"]) - set(instance.cores):
                raise UnsupportedError(
                    f"{self.name}: threads of this model run on the cores {answer['cores']}, though they "
                    f"were pinned to {list(instance.cores)}."
                )
        first = answers[0]
        return Subject(self.name, first["kind"], first["size"], first["coverage"], first["seconds"])

    def shape(self, size: Size, pace: Pace) -> int | None:
        """Make inputs of this size and warm up; returns the length of their sequences, if they have any."""
        answers = ask_all(
            self._instances,
            "shape",
            batch=size.batch,
            sequence=size.sequence,
            warmup=pace.warmup,
            patient=pace.iterations is not None,
        )
        length: int | None = answers[0]["sequence"]
        return length

    def turn(self, **options: Any) -> Turn:
        """All instances at once."""
        answers = ask_all(self._instances, "turn", at=time.monotonic() + NOTICE, **options)
        return Turn(
            tuple(chain.from_iterable(answer["ms"] for answer in answers)),
            sum(len(answer["ms"]) / answer["seconds"] for answer in answers),
            max(answer["memory"] for answer in answers),
        )


def bench(
    models: Sequence[str | Path],
    *,
    batch: int | Sequence[int] = 1,
    sequence: int | Sequence[int] | None = None,
    instances: int = 1,
    cores: int | None = None,
    seconds: float = 3.0,
    warmup: int = 5,
    iterations: int | None = None,
    data: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Latency, throughput and memory of models, and how many times faster than the first the others are.

    ``models`` are paths of anything that Octune opens, or ``package.module:factory``. Every model runs at
    every size of ``batch`` and ``sequence`` for about ``seconds``, or for ``iterations`` calls. ``instances``
    processes run at once, on ``cores`` cores each: all there are if left out. Inputs are made from the
    model's signature, or are rows of ``data``, an ``.npz`` file. ``say`` hears of the progress.
    """
    sizes = [
        Size(samples, length)
        for samples, length in product(_whole("batch", batch), _whole("sequence", sequence) or (None,))
    ]
    pace = Pace(seconds, warmup, iterations)
    file = _file(data, sequence)
    places = placed(instances, cores)
    with ExitStack() as stack:
        teams = [
            Team(name, [stack.enter_context(closing(Instance(source, place, file))) for place in places])
            for name, source in _names(models).items()
        ]
        subjects = []
        for team in teams:
            say(f"opening {team.name}")
            subjects.append(team.open())
        patience = Patience()
        rows = list(chain.from_iterable(_rows(teams, size, pace, patience, say) for size in sizes))
        if all(row.error for row in rows):
            raise DataError(f"Nothing could be timed. {rows[0].error}")
    return Bench(subjects, rows, places, probe_machine().to_json())


def _rows(
    teams: Sequence[Team], size: Size, pace: Pace, patience: Patience, say: Callable[[str], None]
) -> Iterator[Row]:
    """One row for each model at this size."""
    failed: dict[str, str] = {}
    lengths: dict[str, int | None] = {}
    for team in teams:
        try:
            lengths[team.name] = team.shape(size, pace)
        except OctuneError as error:
            failed[team.name] = str(error)
    ready = [team for team in teams if team.name in lengths]
    say(f"timing {size}")
    turns, load = undisturbed(
        lambda: _measure(ready, pace), lambda *_: True, patience=patience, with_children=True
    )
    for team in teams:
        if team.name in failed:
            yield Row(team.name, size.batch, size.sequence, error=failed[team.name])
            continue
        own, first = turns[team.name], None if team is teams[0] else turns.get(teams[0].name)
        yield Row(
            team.name,
            size.batch,
            lengths[team.name],
            Latency(tuple(chain.from_iterable(turn.ms for turn in own))),
            size.batch * statistics.median(turn.rate for turn in own),
            max(turn.memory for turn in own),
            None if first is None else Speedup.of(_medians(first), _medians(own), load).wider(STARTS),
            load,
        )


def _measure(teams: Sequence[Team], pace: Pace) -> dict[str, list[Turn]]:
    if pace.iterations is not None:
        return in_turns({team.name: team.turn for team in teams}, rounds=pace.iterations, pause=PAUSE)
    turns = {team.name: partial(team.turn, seconds=LONG) for team in teams}
    return in_turns(turns, seconds=pace.seconds * len(teams), pause=PAUSE)


def _medians(turns: Sequence[Turn]) -> Latency:
    """One number for each turn, so that turns of two models make pairs."""
    return Latency(tuple(statistics.median(turn.ms) for turn in turns))


# -- what was asked for --------------------------------------------------------------------------------------


def _names(models: Sequence[str | Path]) -> dict[str, str]:
    """Sources by names that differ, also if one model is given twice."""
    if isinstance(models, str | Path) or not models:
        raise ConfigError(f"Give a list of models to time. Got {models!r} instead.")
    named: dict[str, str] = {}
    for source in map(str, models):
        same = sum(other == source for other in named.values())
        named[source if not same else f"{source} ({same + 1})"] = source
    return named


def _whole(what: str, given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return ()
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ConfigError(f"{what} must be one or more whole numbers >= 1. Got {given!r} instead.")
    return tuple(sorted(set(sizes)))  # memory is that of the largest size so far


def _file(data: str | Path | None, sequence: int | Sequence[int] | None) -> Path | None:
    if data is None:
        return None
    if sequence is not None:
        raise ConfigError("data has sequences of its own length, so sequence cannot be given as well.")
    if not Path(data).is_file():
        raise DataError(f"There is no file {data}. Expected an .npz file with an array for every input.")
    return Path(data).resolve()
