"""Questions to a process of its own: what crashes or hangs there is an answer here, and nothing more.

    isolation = Isolation(hello, limits)            # hello: what the other process makes the job again from
    answer = isolation.ask("trial", plan=..., ranges=...)       # Gone says how the process ended
    isolation.close()

Frameworks keep threads that do not survive a fork, so the process is a new one, which makes the job again
(isolated.py). It lives as long as it answers; the next question after a crash starts another.
"""

from __future__ import annotations

import json
import logging
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import octune
from octune.errors import ConfigError, OctuneError
from octune.scratch import sweep

__all__ = ["Failed", "Gone", "Isolation", "Limits"]

log = logging.getLogger("octune")
STARTING = 1200.0  # seconds to open the model and the data
GRACE = 5.0  # seconds that a trial gets to stop by itself when its time is over
LEAST, SHARE = 300.0, 30.0  # seconds of a trial without a limit: this many times as long as fp32 took
CHOICE = 5.0  # seconds more for each scheme of an op whose harm or cost is looked for


class Gone(OctuneError):
    """The process that was asked has ended, or was ended because it did not answer."""


class Failed(OctuneError):
    """The process that was asked answers with an error, as this one would have met."""


@dataclass
class Limits:
    """How long an answer may take: ``scoring`` seconds for a score (0: no limit), where ``fp32`` took so
    many; and ``choices`` are to be looked at.
    """

    scoring: float = 0.0
    fp32: float = 0.0
    choices: int = 0

    @property
    def whole(self) -> float:
        """Seconds for making, timing and scoring a model, after which it is taken to hang."""
        return max(LEAST, SHARE * self.fp32) + CHOICE * self.choices


class Isolation:
    """Starts its process with the first question."""

    def __init__(self, hello: Callable[[], dict[str, Any]], progress: Callable[[float], None]) -> None:
        self._hello, self._progress = hello, progress
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._complaints: Any = None
        self._learned: Callable[[str, Any], None] | None = None

    def start(self) -> None:
        """Start the process and have it make the job again; ConfigError if it cannot."""
        if self._process is not None:
            return
        try:
            hello = pickle.dumps(self._hello())
        except Exception as error:  # whatever an object of the user's raises when it is pickled
            raise ConfigError(_refused(f"{type(error).__name__}: {error}")) from error
        self._pipe, theirs = Pipe()
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed by close()
        found = [str(Path(octune.__file__).parents[1]), *sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"import sys; sys.path[:] = {found!r}; from octune.isolated import serve; "
                    f"serve({theirs.fileno()})",
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._complaints,  # what user code prints there was heard once already
                stderr=self._complaints,
                start_new_session=True,  # Ctrl-C is for the process that waits for answers
            )
        try:
            self._send(hello)
            answer = self._hear(STARTING, 0.0)
        except Gone as error:
            self.close()
            raise ConfigError(_refused(str(error))) from error
        except BaseException:
            self.close()
            raise
        if "error" in answer:
            self.close()
            raise ConfigError(_refused(answer["error"]))

    def ask(
        self, what: str, limits: Limits, learned: Callable[[str, Any], None] | None = None, **given: Any
    ) -> Any:
        """The answer to a question, as plain data; Gone if there is none, Failed if it is an error. What is
        ``learned`` on the way there is told at once.
        """
        self._learned = learned
        self.start()
        try:
            self._send(pickle.dumps((what, given)))
            answer = self._hear(limits.whole, limits.scoring)
        except BaseException:  # Ctrl-C as well: what it is at is of no use to anybody
            self.close()
            raise
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["answer"]

    def _send(self, message: bytes) -> None:
        if self._pipe is None:
            raise Gone("it was closed")
        try:
            self._pipe.send_bytes(message)
        except OSError:
            raise self._ended() from None

    def _hear(self, whole: float, scoring: float) -> dict[str, Any]:
        if self._pipe is None:
            raise Gone("it was closed")
        until, said = time.monotonic() + whole, f"{whole:.0f} s, many times as long as it should take"
        scored = False
        while True:
            left = until - time.monotonic()
            if left <= 0 or not self._pipe.poll(left):
                raise Gone(f"its process did not answer within {said}, and was ended: it hangs")
            try:
                answer: dict[str, Any] = json.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                raise self._ended() from None
            if "learned" in answer:
                if self._learned is not None:
                    self._learned(*answer["learned"])
                continue
            if "progress" not in answer:
                return answer
            if scoring and not scored:
                scored, until = True, time.monotonic() + scoring + GRACE
                said = f"the limit of {scoring:g} s for one trial (tuning.trial_timeout)"
            self._progress(answer["progress"])

    def _ended(self) -> Gone:
        if self._process is None:
            return Gone("it was closed")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        code = self._process.poll()
        if code is None or code >= 0:
            return Gone(f"the process that tried it ended with exit code {code}")
        name = signal.Signals(-code).name
        hint = ", as Linux does when memory runs out" if name == "SIGKILL" else ""
        return Gone(f"the process that tried it was ended by {name}{hint}")

    def close(self) -> None:
        """End the process, whatever it is at."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        sweep()  # it could remove nothing of its own
        if self._pipe is not None:
            self._pipe.close()
        self._complaints.seek(0)
        log.debug("the process of its own said: %s", self._complaints.read()[-2000:])
        self._complaints.close()


def _refused(why: str) -> str:
    return (
        "A process of its own for what may crash (tuning.isolate) needs a job that can be made again there, "
        f"and this one cannot: {why}. Name model, data and metric in the configuration, or give functions "
        "and classes of modules that can be imported."
    )
