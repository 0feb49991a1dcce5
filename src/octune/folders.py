"""Where Octune keeps what need not be made twice, whether it can write where it is asked to, and how it
writes folders that users keep.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from octune.errors import ArtifactError, OctuneError

__all__ = [
    "cache_folder",
    "check_file",
    "check_replaceable",
    "check_writable",
    "complete_or_absent",
    "sha256",
    "sums",
    "write_whole",
]


def cache_folder() -> Path:
    """``$OCTUNE_CACHE``, or ``~/.cache/octune``; it need not exist yet."""
    return Path(os.environ.get("OCTUNE_CACHE") or "~/.cache/octune").expanduser()


def check_writable(folder: Path, name: str, error: type[OctuneError]) -> None:
    """Raise ``error`` now if files could not be written to ``folder`` later. It need not exist, and is not
    made; ``name`` is what the user calls it, such as ``--output``.
    """
    there = folder.absolute()
    try:
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise NotADirectoryError(f"{there} is a file, not a folder")
        with tempfile.TemporaryFile(dir=there):  # asking for permissions would miss full and read-only disks
            pass
    except OSError as cause:
        why = cause.strerror or str(cause)
        raise error(f"{name} {folder} cannot be written: {why}. Choose another folder.") from cause


def check_file(file: Path, name: str, error: type[OctuneError]) -> None:
    """Raise ``error`` now if ``file`` could not be written later: its folder must be there, which is not made
    for it.
    """
    folder = file.absolute().parent
    if file.is_dir():
        raise error(f"{name} {file} is a folder. Expected the name of a file to write.")
    if not folder.is_dir():
        raise error(f"{name} {file} cannot be written: the folder {folder} does not exist. Make it first.")
    check_writable(folder, f"The folder of {name},", error)


def check_replaceable(folder: Path, marker: str, *, overwrite: bool = False) -> None:
    """A folder that is there is replaced only if that is asked for and it has the file ``marker``, by which
    Octune knows its own folders; ArtifactError otherwise.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            raise ArtifactError(
                f"{folder} exists and is not empty. Choose another folder, or give overwrite=True."
            )
        if folder.is_dir() and not (folder / marker).exists():
            raise ArtifactError(
                f"{folder} is not a saved model (no {marker}), so it is not overwritten. Choose another "
                "folder."
            )


@contextmanager
def complete_or_absent(folder: Path, marker: str, *, overwrite: bool = False) -> Iterator[Path]:
    """An empty folder to write into, which becomes ``folder`` at the end, in one step, or leaves nothing.
    What a killed process left of the same attempt is removed.
    """
    check_replaceable(folder, marker, overwrite=overwrite)
    staging, before, lock = None, folder.with_name(f".{folder.name}-replaced"), None
    try:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            staging, lock = _staging(folder, before)
            yield staging
            staging.chmod(0o755)
            for path in staging.rglob("*"):
                # some libraries write private files; a model is meant to be shared
                path.chmod(0o755 if path.is_dir() else 0o644)
            if folder.exists():
                folder.rename(before)  # a process that is killed here puts it back when it saves again
            staging.rename(folder)
        except OSError as error:
            raise ArtifactError(
                f"The model could not be saved to {folder}: {error}. Choose another folder."
            ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(before, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _staging(folder: Path, before: Path) -> tuple[Path, int]:
    """A new folder beside ``folder``, and the lock that says it is in use; those of dead processes go."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        if left != before:
            _remove_if_dead(left)
    if before.exists() and not folder.exists():
        before.rename(folder)
    while True:
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        lock = _lock_of(staging)
        if lock is not None:
            return staging, lock


def _lock_of(staging: Path) -> int | None:
    """The lock of a new folder; None if another process has removed it, for one of the dead, before it was
    locked. The folder around it cannot be locked against that: it may be one that is locked for as long as it
    is in use.
    """
    try:
        lock = os.open(staging, os.O_RDONLY)
    except FileNotFoundError:
        return None
    _lock(lock)
    if staging.exists():
        return lock
    os.close(lock)
    return None


def _remove_if_dead(left: Path) -> None:
    """Remove a folder that no process has locked."""
    with suppress(FileNotFoundError):
        held = os.open(left, os.O_RDONLY)
        try:
            if _lock(held, fcntl.LOCK_NB):
                shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(held)


def _lock(opened: int, how: int = 0) -> bool:
    """Whether the lock was taken; some file systems have none for folders."""
    with suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_EX | how)
        return True
    return False


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there complete or as it was before, whatever happens meanwhile; OSError if that
    cannot be done. What killed processes left of the same file is removed. Pipes and terminals are
    written to as they are.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    for left in path.parent.glob(f".{path.name}-*.tmp"):
        if not _alive(left.name.removesuffix(".tmp").rpartition("-")[2]):
            left.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(folder: Path) -> dict[str, str]:
    """The checksums of all files in a folder, by their names in it."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
