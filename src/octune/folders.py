"""Where Octune keeps what need not be made twice, whether it can write where it is asked to, and how it
writes folders that users keep.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    """An empty folder to write into, which becomes ``folder`` at the end, in one step, or leaves nothing."""
    check_replaceable(folder, marker, overwrite=overwrite)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ArtifactError(f"The model could not be saved to {folder}: {error}") from error
    try:
        yield staging
        if folder.exists():
            shutil.rmtree(folder)
        staging.chmod(0o755)
        for path in staging.rglob("*"):
            # some libraries write private files; a model is meant to be shared
            path.chmod(0o755 if path.is_dir() else 0o644)
        staging.rename(folder)
    except OSError as error:
        raise ArtifactError(f"The model could not be saved to {folder}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


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
