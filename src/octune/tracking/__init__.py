"""Records of a run for other tools: listeners that TensorBoard and MLflow can read the story from.

with recording(config, listener) as listener:       # the same one, if the configuration asks for no record
    ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from octune.config import Config
from octune.engine.events import Listener, Silent
from octune.errors import ConfigError, MissingDependency, summary
from octune.plan import Scheme
from octune.result import Result, Trial

__all__ = ["Recording", "recording"]

log = logging.getLogger("octune")


@contextmanager
def recording(config: Config, listener: Listener) -> Iterator[Listener]:
    """The listener, with the records that the configuration asks for beside it. A record that cannot be kept
    raises here, before any work is done.
    """
    if not config.tuning.tensorboard and not config.tuning.mlflow:
        yield listener
        return
    kept = Recording(listener, _records(config))
    try:
        yield kept
    finally:
        kept.close()


def _records(config: Config) -> list[Silent]:
    folder = config.workspace.path
    if config.tuning.tensorboard and folder is None:
        raise ConfigError(
            "tuning.tensorboard writes into the workspace, and there is none. Set workspace.path."
        )
    for package in ("tensorboard", "mlflow"):
        if getattr(config.tuning, package) and find_spec(package) is None:
            raise MissingDependency(package, package, f"tuning.{package}")
    records: list[Silent] = []
    if config.tuning.mlflow:
        from octune.tracking.mlflow import Mlflow

        records.append(Mlflow(config, folder))
    if config.tuning.tensorboard and folder is not None:
        from octune.tracking.tensorboard import TensorBoard

        records.append(TensorBoard(folder / "tensorboard"))
    return records


class Recording(Listener):
    """Passes everything on to a listener and to records. A record that fails is given up, with a note: a run
    does not end because a disk is full or a server is gone.
    """

    def __init__(self, listener: Listener, records: Sequence[Listener]) -> None:
        self._listener, self._records = listener, list(records)

    def stage(self, name: str, detail: str) -> None:
        self._tell(lambda one: one.stage(name, detail))

    def progress(self, share: float) -> None:
        self._listener.progress(share)  # too often for a record

    def spread(self, done: Mapping[str, int]) -> None:
        self._listener.spread(done)

    def done(self, name: str, seconds: float) -> None:
        self._tell(lambda one: one.done(name, seconds))

    def harm(self, harms: Mapping[tuple[str, Scheme], float]) -> None:
        self._tell(lambda one: one.harm(harms))

    def trial(self, trial: Trial) -> None:
        self._tell(lambda one: one.trial(trial))

    def note(self, text: str) -> None:
        self._tell(lambda one: one.note(text))

    def result(self, result: Result) -> None:
        self._tell(lambda one: one.result(result))

    def close(self) -> None:
        """Close the records; the listener belongs to whoever brought it."""
        self._record(lambda one: one.close())

    def _tell(self, event: Callable[[Listener], None]) -> None:
        event(self._listener)
        self._record(event)

    def _record(self, event: Callable[[Listener], None]) -> None:
        for record in list(self._records):
            try:
                event(record)
            except Exception as error:
                self._records.remove(record)
                log.debug("record", exc_info=True)
                self._listener.note(
                    f"{type(record).__name__} has no record of the rest of this run: "
                    f"{type(error).__name__}: {summary(error)}"
                )
