"""Where the time of a run goes, stage by stage.

clock.enter("calibration", "observing activations")     # announces and records it, and ends the one before
with clock.within("timing"):                            # books what happens here under another name
    ...
clock.seconds                                           # {"baseline": 8.2, "calibration": 1.1, ...}
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from octune.engine.events import Listener
from octune.engine.journal import Journal

__all__ = ["Clock"]


class Clock:
    """Books every second under one stage."""

    def __init__(self, listener: Listener, journal: Journal) -> None:
        self.seconds: dict[str, float] = {}
        self._listener, self._journal = listener, journal
        self._began = time.monotonic()
        self._entered: tuple[str, float] | None = None
        self._announced: tuple[str, float] | None = None

    def enter(self, stage: str, detail: str) -> None:
        """A stage begins, and the one before it ends."""
        self._tell()
        self._switch(stage)
        passed = round(time.monotonic() - self._began, 3)
        self._journal.append("stage", {"name": stage, "detail": detail, "at": time.time(), "seconds": passed})
        self._announced = (stage, time.perf_counter())
        self._listener.stage(stage, detail)

    @contextmanager
    def within(self, stage: str) -> Iterator[None]:
        """Book what happens here under another stage, without announcing it."""
        before = self._entered
        self._switch(stage)
        try:
            yield
        finally:
            self._book() if before is None else self._switch(before[0])

    def stop(self) -> None:
        """The last stage has ended."""
        self._book()
        self._tell()

    def _tell(self) -> None:
        """Announce that a stage has ended; what was booked under other names meanwhile is a part of it."""
        if self._announced is not None:
            stage, begun = self._announced
            self._announced = None
            self._listener.done(stage, time.perf_counter() - begun)

    def _book(self) -> None:
        if self._entered is not None:
            stage, begun = self._entered
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begun
            self._entered = None

    def _switch(self, stage: str) -> None:
        self._book()
        self._entered = (stage, time.perf_counter())
