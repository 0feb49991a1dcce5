"""What takes long to make, once in a run of the tests: the first process that needs it makes it for all.

    folder = once("digits in ONNX", lambda place: export(model, place / "fp32.onnx"))

``RUN`` is a folder that all processes of a run share: those that pytest-xdist starts, and those that tests
start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["RUN", "once"]

VARIABLE = "OCTUNE_TEST_RUN"
if VARIABLE not in os.environ:
    _OWN = tempfile.TemporaryDirectory(prefix="octune-tests-")  # removed when the first process ends
    os.environ[VARIABLE] = _OWN.name
RUN = Path(os.environ[VARIABLE])


def once(key: str, make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` fills, for reading."""
    folder = RUN / "made" / hashlib.sha256(key.encode()).hexdigest()[:16]
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = folder.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)  # of a process that was killed
            half.mkdir()
            make(half)
            half.rename(folder)
    return folder
