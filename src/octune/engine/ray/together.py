"""Several models scored at the same time, by workers that are elsewhere.

together = Together(rounds)
together.add("a", lambda wait: evaluator(model(wait), pairing, standard))
together.add("b", ...)
together.result("a", limit=60)          # the others go on meanwhile
together.close()

Each is scored by code that reads from top to bottom and waits for workers again and again. So each has a
thread, but only one of all threads runs at a time: no metric is run twice at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from octune.engine.ray.rounds import Round, Rounds
from octune.errors import EvaluationTimeout
from octune.evaluation.guard import expired
from octune.score import Score

__all__ = ["Together", "Wait"]

Wait: TypeAlias = Callable[[Round], None]
UNWINDING = 1.0  # seconds that a thread gets to come to an end when nobody waits for it any more


class _Strand:
    """A thread that runs while who resumes it waits."""

    def __init__(self, work: Callable[[Wait], Score]) -> None:
        self._work = work
        self._go, self._halt = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True, name="octune-scoring")
        self._running = self._called_off = False
        self._score: Score | None = None
        self._error: BaseException | None = None
        self.round: Round | None = None  # what it waits for
        self.done = False

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return not self.done and (self.round is None or self.round.ready)

    def resume(self, seconds: float | None) -> None:
        """Let it go on until it waits for workers or is done, for at most this many seconds."""
        if not self._running:
            self._running = True
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._go.release()
        self._running = not self._halt.acquire(timeout=seconds)

    def result(self) -> Score:
        """What it came to; what was raised there is raised here."""
        if self._error is not None:
            raise self._error
        if self._score is None:
            raise EvaluationTimeout("Nobody waits for that model any more.")
        return self._score

    def call_off(self) -> None:
        """It comes to an end where it waits."""
        self._called_off = True
        if self._thread.ident is not None and not self.done:
            self._go.release()
            self._thread.join(UNWINDING)

    def _run(self) -> None:
        try:
            self._score = self._work(self._wait)
        except BaseException as error:
            self._error = error
        finally:
            self.done = True
            self._halt.release()

    def _wait(self, waits_for: Round) -> None:
        self.round = waits_for
        self._halt.release()
        self._go.acquire()
        self.round = None
        if self._called_off:
            raise EvaluationTimeout("Nobody waits for that model any more.")


class Together:
    """Models that are being scored, by their keys."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._strands: dict[str, _Strand] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._strands

    def add(self, key: str, work: Callable[[Wait], Score]) -> None:
        """Score one more; ``work`` calls what it is given whenever it waits for workers."""
        self._strands[key] = _Strand(work)

    def result(self, key: str, limit: float = 0) -> Score:
        """The score of one, and no more of it; EvaluationTimeout if it takes more than ``limit`` seconds from
        now on (0: no limit).
        """
        strand, until = self._strands[key], time.monotonic() + limit
        while not strand.done:
            left = until - time.monotonic() if limit else None
            if left is not None and left <= 0:
                raise expired(limit)
            ready = [one for one in self._strands.values() if one.ready]
            for one in ready:
                one.resume(left)
            if not ready:
                self._rounds.step()
        del self._strands[key]
        return strand.result()

    def close(self, *, willing: bool = True) -> None:
        """Nobody waits for the others any more."""
        for strand in self._strands.values():
            if strand.round is not None:
                self._rounds.close(strand.round, willing=willing)
            strand.call_off()
        self._strands.clear()
