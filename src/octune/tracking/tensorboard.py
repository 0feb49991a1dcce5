"""A run for TensorBoard: scores, speed-ups and harm as scalars, trials as the HParams dashboard shows them.

Events are written by TensorBoard's own record writer. Its higher interfaces import TensorFlow wherever that
is installed, which takes seconds and memory beside a PyTorch model that is being timed.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from octune.engine.events import Silent
from octune.plan import Scheme
from octune.result import Trial
from octune.tracking.numbers import facts, least_harm, numbers

__all__ = ["TensorBoard"]


class TensorBoard(Silent):
    """Writes ``folder``, which it owns: one run for the whole search, and one for each trial."""

    def __init__(self, folder: Path) -> None:
        # A resumed run tells everything again, from its journal.
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._events = _Events(folder)
        self._trials = 0

    def harm(self, harms: Mapping[tuple[str, Scheme], float]) -> None:
        self._events.scalars({f"harm/{op}": value for op, value in least_harm(harms).items()}, 0)

    def trial(self, trial: Trial) -> None:
        found = numbers(trial)
        self._events.scalars({f"trial/{name}": value for name, value in found.items()}, self._trials)
        own = _Events(self._folder / f"trial-{self._trials:03d}-{trial.form}")
        own.session(facts(trial), failed=trial.error is not None)
        own.scalars(found, 0)
        own.close()
        self._trials += 1

    def close(self) -> None:
        self._events.close()


class _Events:
    """An event file in a folder of its own, flushed after every write so that TensorBoard can watch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        made = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(summary=Summary(value=made), step=step)

    def session(self, given: Mapping[str, str | float], *, failed: bool) -> None:
        """What the HParams dashboard shows as a row."""
        start = SessionStartInfo(start_time_secs=time.time())
        for name, value in given.items():
            field = "string_value" if isinstance(value, str) else "number_value"
            setattr(start.hparams[name], field, value)
        end = SessionEndInfo(status=STATUS_FAILURE if failed else STATUS_SUCCESS, end_time_secs=time.time())
        for tag, data in (
            (hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
            (hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
        ):
            value = Summary.Value(
                tag=tag, metadata=hparams.create_summary_metadata(data), tensor=hparams.NULL_TENSOR
            )
            self._write(summary=Summary(value=[value]))

    def _write(self, **content: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._records.close()
