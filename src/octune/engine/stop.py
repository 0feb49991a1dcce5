"""When to stop: Ctrl-C, the time budget, the number of trials.

    stop = Stop(timeout=600, max_trials=100)
    while not stop.reason:
        stop.trials += 1

Ctrl-C asks for an end with the best found so far: whatever is running is broken off by a KeyboardInterrupt, which the
engine turns into a reason to stop (``interrupted``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Stop"]


@dataclass
class Stop:
    """Counts trials and seconds; ``reason`` is empty as long as the search may go on."""

    timeout: float = 0
    max_trials: int = 100
    trials: int = 0
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds left, or None without a time budget."""
        return max(0.0, self.timeout - self.seconds) if self.timeout > 0 else None

    @property
    def reason(self) -> str:
        """Why to stop now, or an empty string."""
        if self.interrupted:
            return "interrupted by the user"
        if self.trials >= self.max_trials:
            return f"max_trials reached ({self.max_trials})"
        if self.left == 0.0:
            return f"timeout reached ({self.timeout:g} s)"
        return ""
