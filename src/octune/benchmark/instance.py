"""A model in a process of its own, seen from the process that compares: it is told when its turn is.

instance = Instance("model-int8", cores=(0,))
instance.ask("open")                                # opens the model
instance.ask("shape", batch=8, sequence=128)        # makes inputs of that size, and warms up
instance.ask("turn", at=time.monotonic(), seconds=0.1)

A process of its own makes memory and threads honest: it is pinned to its cores, and its environment is set,
before the framework is imported.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import octune
from octune import errors
from octune.errors import ModelError, OctuneError
from octune.pinning import threads_of

__all__ = ["Instance", "ask_all"]

log = logging.getLogger("octune")

BOOT = """\
import os, sys
cores = {int(core) for core in sys.argv[1].split(",")}
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, cores)
from octune.benchmark.worker import serve
serve()
"""


class Instance:
    """Starts its process when it is made; ends it when it is closed, or with this process."""

    def __init__(
        self, source: str, cores: Sequence[int], data: Mapping[str, Any] | None = None, trust: bool = False
    ) -> None:
        self.source, self.cores = source, tuple(cores)
        # What libraries print; closed with the process.
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        job = {"source": source, "threads": len(self.cores), "data": data, "trust": trust}
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, ",".join(map(str, self.cores)), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **threads_of(len(self.cores)), "PYTHONPATH": _search_path()},
            text=True,
            start_new_session=True,  # Ctrl-C is for the process that compares
        )

    def tell(self, what: str, **options: Any) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **options}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self) -> dict[str, Any]:
        """The answer to what was told last."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            # made without its __init__, which may take something else than the text
            kind = getattr(errors, answer["kind"], ModelError)
            text = answer["error"]
            raise OctuneError.__new__(kind, text if self.source in text else f"{self.source}: {text}")
        return answer

    def ask(self, what: str, **options: Any) -> dict[str, Any]:
        """Ask and wait for the answer; what went wrong there is raised here."""
        self.tell(what, **options)
        return self.hear()

    def _ended(self) -> ModelError:
        code = self._process.wait()
        self._complaints.seek(0)
        last = self._complaints.read().strip().splitlines()[-3:]
        return ModelError(
            f"{self.source}: the process that ran it ended with code {code}. "
            + (f"Its last words: {' / '.join(last)}" if last else "It may have run out of memory.")
        )

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()
        self._complaints.seek(0)
        log.debug("%s said: %s", self.source, self._complaints.read())
        self._complaints.close()


def ask_all(instances: Sequence[Instance], what: str, **options: Any) -> list[dict[str, Any]]:
    """Ask several at once, so that they work side by side."""
    for instance in instances:
        instance.tell(what, **options)
    answers, failures = [], []
    for instance in instances:
        try:
            answers.append(instance.hear())
        except OctuneError as error:  # the others' answers must be heard all the same
            failures.append(error)
    if failures:
        raise failures[0]
    return answers


def _search_path() -> str:
    """Where another process finds this Octune, installed or not, and whatever else this process finds."""
    return os.pathsep.join([str(Path(octune.__file__).parent.parent), *filter(None, sys.path)])
