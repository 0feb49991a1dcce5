"""The other side of ``engine/isolation.py``: makes a job again in a process of its own, and tries what it is
asked to try.

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
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from octune.calibration import Ranges
from octune.engine.events import Silent
from octune.engine.journal import difference
from octune.errors import summary
from octune.evaluation.pairing import Pairing
from octune.job import Job
from octune.plan import Plan
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
            _answer(pipe, _tried(job, what, given))


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
        job.study.apart, job.study.survey.elsewhere = None, _here
        return job
    except BaseException:
        job.study.backend.close()
        raise


def _here(plan: Plan, ranges: Ranges) -> None:
    """This is the process of its own: nothing is asked of another."""


def _tried(job: Job, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    study = job.study
    if study.baseline_trial is None:  # the first question
        if study.stopwatch.example is None:
            study.stopwatch.example = given["example"]
        study.survey.prepare(job.calibration)
    study.pairing = Pairing.from_json(given["pairing"])
    study.baseline_trial = Trial.from_json(given["baseline"]).judged_as_baseline(study.criterion)
    study.stopwatch.costs = given["costs"]
    ranges = given["ranges"]
    study.survey.ranges[ranges.samples] = ranges
    try:
        if what == "plan harm":
            probe = study.survey.plan_probe(ranges, job.calibration)
            return {"answer": None if probe is None else probe.measure(given["plan"])}
        for event, record in given.get("known", ()):
            study.journal.append(event, record)
        known = len(study.journal.sequence("trial", "speed", "forms"))
        if what == "trial":
            study.trial(given["plan"], given["reason"], ranges)
        else:
            study.forms.make(given["winner"], ranges)
        return {"answer": study.journal.sequence("trial", "speed", "forms")[known:], "notes": study.notes}
    except Exception as error:
        log.debug("%s", what, exc_info=True)
        return {"error": f"{type(error).__name__}: {summary(error)}"}


def _answer(pipe: Connection[Any, Any], message: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(json.dumps(message).encode())
