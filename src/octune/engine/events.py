"""What a run says while it works. The terminal listens with a live table, a program with logging, a test with
a list.

    class Ear(octune.Listener):
        def trial(self, trial):
            print(trial.form, trial.score, trial.verdict)

    octune.tune(..., listener=Ear())
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from octune.plan import Scheme
from octune.result import Result, Trial

__all__ = ["Listener", "Silent"]

log = logging.getLogger("octune")


class Listener:
    """Hears of stages, trials and notes; this one writes them to the ``octune`` logger. Override what you
    want to hear.
    """

    def stage(self, name: str, detail: str) -> None:
        """A stage begins."""
        log.info("%s: %s", name, detail)

    def progress(self, share: float) -> None:
        """How much of the data a model has been scored on, from 0 to 1; often, and perhaps from another
        thread. A model that fails for certain is not scored on all of it.
        """

    def spread(self, done: Mapping[str, int]) -> None:
        """How many parts of the work of this stage each node of a cluster has done, with ``engine: ray``:
        batches, items or ops; often.
        """

    def done(self, name: str, seconds: float) -> None:
        """A stage has ended."""
        log.info("%s took %.1f s", name, seconds)

    def harm(self, harms: Mapping[tuple[str, Scheme], float]) -> None:
        """The label-free harm of every op in every scheme is known."""

    def trial(self, trial: Trial) -> None:
        """A trial has ended."""
        log.info("%s (%s): %s", trial.reason, trial.form, trial.error or trial.verdict)

    def note(self, text: str) -> None:
        """Something that the user should know; it is in the result's notes, too."""
        log.warning("%s", text)

    def result(self, result: Result) -> None:
        """What the run has found, if it came to a result."""

    def close(self) -> None:
        """The run is over."""


class Silent(Listener):
    """Hears everything and says nothing."""

    def stage(self, name: str, detail: str) -> None: ...

    def done(self, name: str, seconds: float) -> None: ...

    def trial(self, trial: Trial) -> None: ...

    def note(self, text: str) -> None: ...
