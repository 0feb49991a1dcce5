"""The other side of ``engine/isolation.py``: makes a job again in a process of its own, and answers what it
is asked there.

The job must be the very same: its identity (the digest of the weights, of the data, ...) is compared before
anything is tried.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import pickle
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from octune.engine.events import Silent
from octune.engine.journal import Journal, difference
from octune.errors import summary
from octune.evaluation.pairing import Pairing
from octune.job import Job
from octune.result import Trial

__all__ = ["serve"]

log = logging.getLogger("octune")
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class _Telling(Silent):
    """Tells the process that waits how far the scoring is."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def progress(self, share: float) -> None:
        _answer(self._pipe, {"progress": share})


def serve(pipe_number: int) -> None:
    """Answer until the other side closes the pipe, or ends."""
    pipe: Connection[Any, Any] = Connection(pipe_number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = pickle.loads(pipe.recv_bytes())  # written by the process that has started this one
    _go_first(first["parent"])
    try:
        job = _made(first, pipe)
    except Exception as error:
        log.debug("the job cannot be made again", exc_info=True)
        _answer(pipe, {"error": f"{type(error).__name__}: {summary(error)}"})
        return
    with job:
        _answer(pipe, {"answer": None})
        while True:
            try:
                what, given = pickle.loads(pipe.recv_bytes())
            except EOFError:
                return
            _answer(pipe, _tried(job, pipe, what, given))


def _go_first(parent: int) -> None:
    """End with the process that waits, and before it where memory runs out."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    if os.getppid() != parent:
        os._exit(1)


def _made(first: Mapping[str, Any], pipe: Connection[Any, Any]) -> Job:
    os.chdir(first["folder"])
    job = Job.of(replace(first["request"], listener=_Telling(pipe)))
    try:
        here = json.loads(json.dumps(job.identity()))
        if (found := difference(first["identity"], here)) is not None:
            raise ValueError(f"its {found[0]} differs ({found[1]})")
        threads = job.study.backend.environment().get("threads")
        if threads != first["threads"]:
            raise ValueError(
                f"it would run on {threads} threads, and the run has {first['threads']}: set "
                "performance.threads"
            )
        job.study.apart.isolation = None  # this is the process of its own
        return job
    except BaseException:
        job.study.backend.close()
        raise


def _tried(job: Job, pipe: Connection[Any, Any], what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    study, ranges = job.study, given["ranges"]
    if study.stopwatch.example is None:
        study.stopwatch.example = given["example"]
    if not study.survey.ranges:  # the first question
        study.survey.prepare(job.calibration)
    study.pairing = Pairing.from_json(given["pairing"])
    if given["baseline"] is not None:
        study.baseline_trial = Trial.from_json(given["baseline"]).judged_as_baseline(study.criterion)
    study.stopwatch.costs = given["costs"]
    study.survey.ranges[ranges.samples] = ranges
    try:
        if what == "harm":
            return {"answer": study.survey.harms(given["ops"], ranges, job.calibration)}
        if what == "cost":
            return {"answer": study.survey.costs(given["ops"], ranges)}
        if what == "plan harm":
            probe = study.survey.plan_probe(ranges, job.calibration)
            return {"answer": None if probe is None else probe.measure(given["plan"])}
        if what == "trial":
            study.trial(given["plan"], given["reason"], ranges)
            return {"answer": study.journal.records("trial")[-1]["answer"]}
        for event, record in given["known"]:
            study.journal.append(event, record)
        with _heard(study.journal, pipe):
            study.forms.make(given["winner"], ranges, given["rival"])
        return {"answer": None}
    except Exception as error:
        log.debug("%s", what, exc_info=True)
        return {"error": f"{type(error).__name__}: {summary(error)}"}


@contextlib.contextmanager
def _heard(journal: Journal, pipe: Connection[Any, Any]) -> Iterator[None]:
    """Tell the process that waits what was found of a form as soon as it is found."""

    def tell(event: str, data: Mapping[str, Any]) -> None:
        if event in ("trial", "speed", "forms"):
            _answer(pipe, {"learned": [event, data]})

    silent, journal.heard = journal.heard, tell
    try:
        yield
    finally:
        journal.heard = silent


def _answer(pipe: Connection[Any, Any], message: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(json.dumps(message).encode())
