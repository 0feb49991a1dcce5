"""When to stop: Ctrl-C, the time budget, the number of trials.

    stop = Stop(timeout=600, max_trials=100)
    while not stop.reason:
        stop.trials += 1

Ctrl-C asks for the best found so far: whatever is running is interrupted by a KeyboardInterrupt,
which the engine turns into a reason to stop (``interrupted``). It is remembered as well: an exception is lost
where it is raised in a callback of the interpreter, or where the user's code swallows it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["INTERRUPTED", "Stop"]

INTERRUPTED = "interrupted by the user"


@dataclass
class Stop:
    """Counts trials and seconds; ``reason`` is empty as long as the search may go on."""

    timeout: float = 0
    max_trials: int = 100
    trials: int = 0
    interrupted: bool = False
    spent: float = 0.0  # seconds that earlier processes have worked on this run
    replaying: bool = False  # what they have found is told again, which takes no time
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def remembering_interrupts(self) -> Iterator[None]:
        """Note every Ctrl-C, where it would raise KeyboardInterrupt: a handler that others installed stays
        in place.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def note(signum: int, frame: Any) -> None:
            self.interrupted = True
            signal.default_int_handler(signum, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds left, or None without a time budget."""
        if self.timeout <= 0 or self.replaying:
            return None
        return max(0.0, self.timeout - self.spent - self.seconds)

    @property
    def reason(self) -> str:
        """Why to stop now, or an empty string."""
        if self.interrupted:
            return INTERRUPTED
        if self.trials >= self.max_trials:
            return f"max_trials reached ({self.max_trials})"
        if self.left == 0.0:
            return f"timeout reached ({self.timeout:g} s)"
        return ""
