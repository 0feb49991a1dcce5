"""Times models side by side and in turns, each in processes of its own.

    outcome = bench(["bert.onnx", "bert-int8"], batch=(1, 8), sequence=(128,))
    print(outcome)

A round is one turn of each model, so a slow moment of the machine hits all of them. In a turn all instances
of a model run at once, each pinned to its own cores. The statistics are those of :mod:`octune.cost.latency`.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from octune.benchmark.instance import Instance, ask_all
from octune.benchmark.outcome import Bench, Row, Subject
from octune.benchmark.request import Pace, Request, Size
from octune.config import Config, as_config
from octune.cost.latency import LONG, Latency, Speedup, in_turns, undisturbed
from octune.cost.load import Patience
from octune.errors import DataError, OctuneError, UnsupportedError
from octune.machine import probe_machine

__all__ = ["bench"]

log = logging.getLogger("octune")
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
        for warning in first["warnings"]:
            log.warning("%s", warning)
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
    models: Sequence[str | Path] = (),
    *,
    batch: int | Sequence[int] | None = None,
    sequence: int | Sequence[int] | None = None,
    instances: int | None = None,
    cores: int | None = None,
    seconds: float = 3.0,
    warmup: int | None = None,
    iterations: int | None = None,
    data: str | Path | None = None,
    config: Config | str | Path | dict[str, Any] | None = None,
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Latency, throughput and memory of models, and how many times faster than the first the others are.

    ``models`` are paths of anything that Octune opens, or ``package.module:factory``. Every model runs at
    every size of ``batch`` and ``sequence`` for about ``seconds``, or for ``iterations`` calls. ``instances``
    processes run at once, on ``cores`` cores each: all there are if left out. Inputs are made from the
    model's signature, or are rows of ``data``, an ``.npz`` file. What is left out may be said by ``config``:
    its section ``performance``, its data, and its model, which is then the first. ``trust``: as for
    :func:`octune.load`. ``say`` hears of the progress.
    """
    request = Request.of(
        models, as_config(config), batch, sequence, instances, cores, seconds, warmup, iterations, data
    )
    with ExitStack() as stack:

        def start(source: str) -> list[Instance]:
            return [
                stack.enter_context(closing(Instance(source, place, request.data, trust)))
                for place in request.places
            ]

        teams = [Team(name, start(source)) for name, source in request.models.items()]
        subjects = []
        for team in teams:
            say(f"opening {team.name}")
            subjects.append(team.open())
        patience = Patience()
        rows = [row for size in request.sizes for row in _rows(teams, size, request.pace, patience, say)]
        if all(row.error for row in rows):
            raise DataError(f"Nothing could be timed. {rows[0].error}")
    return Bench(subjects, rows, request.places, probe_machine().to_json())


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
    turns: dict[str, list[Turn]] = {}
    load = 0.0
    if ready := [team for team in teams if team.name in lengths]:
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
