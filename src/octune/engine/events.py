"""What a run says while it works. The terminal listens with a live table, a program with logging, a test with
a list.
"""

from __future__ import annotations

import logging

from octune.result import Trial

__all__ = ["Listener"]

log = logging.getLogger("octune")


class Listener:
    """Hears of stages, trials and notes; this one writes them to the ``octune`` logger."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def stage(self, name: str, detail: str) -> None:
        """A stage begins."""
        log.info("%s: %s", name, detail)

    def trial(self, trial: Trial) -> None:
        """A trial has ended."""
        log.info("%s (%s): %s", trial.reason, trial.form, trial.error or trial.verdict)

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.notes.append(text)
        log.warning("%s", text)

    def close(self) -> None:
        """The run is over."""
