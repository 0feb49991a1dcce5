"""Folders for what need not outlive its process, in the system's place for such things.

    with scratch() as folder:
        (folder / "model.onnx").write_bytes(...)
    kept = Scratch()                # removed with the object, or at the end of the process
    kept.path
    sweep()                         # a process that was killed has removed nothing

Who lives is told by locks, which the kernel takes back from the dead: numbers of processes are given again,
and another container has its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Scratch", "scratch", "sweep"]


class Scratch:
    """A new folder that only this user can read."""

    def __init__(self) -> None:
        with _home() as home:
            self.path = Path(tempfile.mkdtemp(prefix="octune-", dir=home))
            lock = _locked(self.path)
        self._end = weakref.finalize(self, _removed, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove it now."""
        self._end()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for as long as the block lasts."""
    folder = Scratch()
    try:
        yield folder.path
    finally:
        folder.close()


def sweep() -> None:
    """Remove the folders of processes that have ended."""
    with suppress(OSError), _home() as home:
        for left in () if home is None else home.iterdir():
            lock = _locked(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


@contextmanager
def _home() -> Iterator[Path | None]:
    """The folder of all such folders of this user, which no other process changes meanwhile; None where
    another user has taken its name.
    """
    home = Path(tempfile.gettempdir()) / f"octune-{os.getuid()}"
    with suppress(OSError):
        home.mkdir(mode=0o700)
    if not _only_mine(home):
        yield None
        return
    door = os.open(home, os.O_RDONLY)
    try:
        # or a folder could be taken for one of the dead between being made and being locked
        with suppress(OSError):
            fcntl.flock(door, fcntl.LOCK_EX)
        yield home
    finally:
        os.close(door)


def _locked(folder: Path) -> int | None:
    """The lock of a folder, if nobody has it."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return opened
    except OSError:
        os.close(opened)
        return None


def _only_mine(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _removed(folder: Path, lock: int | None, owner: int) -> None:
    if os.getpid() != owner:  # a fork, which has all objects of the process that uses the folder
        return
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)
