"""A tool of peers.py at work: a process in an environment of its own, which first makes its model, then
answers and is timed as it is asked to. What is said, and the files it is said with, is in peer_tools/job.py.

    with Process(tool, python, job, target, score) as process:
        process.made            # what it took, or what went wrong
        process.answers()       # its outputs for all evaluation batches
        process.turn(3)         # milliseconds of three calls
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Process"]

MINUTES = 120.0
WORDS = 5  # lines of what it printed that are kept for an error


class Process:
    """One tool on one job. ``score`` scores all evaluation batches, for tools that ask."""

    def __init__(
        self,
        command: list[str],
        target: Path,
        score: Callable[[Iterator[dict[str, Any]]], float],
        minutes: float = MINUTES,
    ) -> None:
        target.mkdir()
        self.target, self._score = target, score
        self._log = (target / "log.txt").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=target, text=True
        )
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.made = self._make(time.monotonic() + 60 * minutes, minutes)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def works(self) -> bool:
        """Whether there is a model that answers."""
        return bool(self.made["model"])

    def answers(self) -> Iterator[dict[str, Any]]:
        """Its outputs for each evaluation batch."""
        self._ask(ask="answers")
        return self._answered()

    def turn(self, calls: int) -> list[float]:
        """Milliseconds of calls at batch 1, behind one that is not timed."""
        times: list[float] = self._ask(ask="time", calls=calls + 1)["ms"]
        return times[1:]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _make(self, deadline: float, minutes: float) -> dict[str, Any]:
        """Wait until it has made its model, and score what it wants scored."""
        while True:
            try:
                said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._process.kill()
                return {"model": False, "error": f"not finished after {minutes:g} minutes"}
            if said is None:
                return {"model": False, "error": self._end()}
            if said["event"] == "made":
                return said
            self._tell(value=self._score(self._answered()))

    def _answered(self) -> Iterator[dict[str, Any]]:
        from job import Batches

        return iter(Batches(self.target / "answers.npz"))

    def _ask(self, **what: Any) -> dict[str, Any]:
        self._tell(**what)
        said = self._said.get()
        if said is None:
            raise RuntimeError(self._end())
        return said

    def _tell(self, **what: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)

    def _end(self) -> str:
        """How it ended, with the last lines that it printed."""
        code = self._process.wait()
        lines = (self.target / "log.txt").read_text(errors="replace").strip().splitlines()[-WORDS:]
        return f"ended with exit code {code}: {' '.join(lines)[-300:]}"
