"""Archives (``.npz``, ``.pt2``, ``.keras``) are looked at before anything in them is read.

    check_archive(Path("data.npz"), DataError)

Nothing is ever unpacked to disk by Octune, but a library that is given the file might; and a small file can
hold more than a machine has memory for.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, LargeZipFile, ZipFile, ZipInfo

from octune.errors import OctuneError

__all__ = ["check_archive"]

# Up to here any size is fine; beyond it nothing that is measured or trained shrinks to a hundredth.
HARMLESS, DENSEST = 512 * 2**20, 100


def check_archive(path: Path, error: type[OctuneError], content: bytes | None = None) -> None:
    """Raise ``error`` if a file is not an archive, or if it reaches outside, says a thing twice, or would
    fill the memory. ``content`` is what was read of it, if it was.
    """
    try:
        with ZipFile(path if content is None else io.BytesIO(content)) as archive:
            entries = archive.infolist()
    except (OSError, BadZipFile, LargeZipFile, NotImplementedError, ValueError) as cause:
        raise error(f"{path} cannot be read as an archive: {cause}") from cause
    for entry in entries:
        if why := _wrong(entry):
            raise error(f"{path} holds {entry.filename!r}, {why}. It was tampered with.")
    names = [entry.filename.lower() for entry in entries]
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise error(f"{path} holds {twice!r} twice. It was tampered with.")
    size = sum(entry.file_size for entry in entries)
    packed = path.stat().st_size if content is None else len(content)
    if size > HARMLESS and size > DENSEST * packed:
        raise error(
            f"{path} has {packed / 2**20:.1f} MB and would fill {size / 2**30:.1f} GB: it is not opened. "
            "If it is yours, write it again without compression."
        )


def _wrong(entry: ZipInfo) -> str:
    path = PurePosixPath(entry.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
        return "which is outside the archive"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "which is a link"
    return "which is encrypted" if entry.flag_bits & 1 else ""
