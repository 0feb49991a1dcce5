"""Compiled code kept from run to run: what was compiled on this machine once is not compiled again.

    kept = NativeCache.here()
    took = kept.take(key, file)         # seconds it once took to compile what is now in `file`, or None
    kept.keep(key, file, seconds)

The key is a digest of all that decides what a compiler makes. Entries are in ``$OCTUNE_COMPILE_CACHE``
(``compiled`` in ``$OCTUNE_CACHE`` or ``~/.cache/octune``), 4 GB at most; what was not used for longest goes
first. ``OCTUNE_COMPILE_CACHE=off`` does without. It is native code, so an entry counts only if the record of
what this user has made on this machine (:mod:`octune.trust`) has it under its key, byte for byte. A folder
that cannot be read or written is treated as if it were not there.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octune.folders import cache_folder, write_whole
from octune.trust import digest_of_native, made_here, remember

__all__ = ["NativeCache"]

log = logging.getLogger("octune")
MOST_BYTES = 4 * 10**9
CODE = ".code"
OFF = ("off", "0", "false", "no")


@dataclass(frozen=True)
class NativeCache:
    """Compiled files by key. Without a folder it keeps nothing."""

    folder: Path | None
    most: int = MOST_BYTES

    @classmethod
    def here(cls) -> NativeCache:
        """The one of this user."""
        named = os.environ.get("OCTUNE_COMPILE_CACHE", "")
        if named.lower() in OFF:
            return cls(None)
        return cls(Path(named).expanduser() if named else cache_folder() / "compiled")

    def take(self, key: str, file: Path) -> float | None:
        """Copy an entry to ``file``, and tell how many seconds it took to compile; None if there is none that
        may be run. What is checked is the copy: nobody can change it in between.
        """
        if self.folder is None:
            return None
        code, told = self._paths(self.folder, key)
        try:
            seconds = float(json.loads(told.read_text())["seconds"])
            shutil.copyfile(code, file)
            if made_here(digest_of_native(file, _told(key, seconds))):
                with suppress(OSError):
                    os.utime(code)  # it was used
                return seconds
            log.warning("%s was not made by you on this machine, or was changed: it is not run", code)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.debug("%s cannot be used: %s", code, error)
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return None

    def keep(self, key: str, file: Path, seconds: float) -> None:
        """Keep a copy of what was compiled, and drop what was not used for longest."""
        if self.folder is None or file.stat().st_size > self.most:
            return
        code, told = self._paths(self.folder, key)
        temporary = code.with_name(f".{code.name}-{os.getpid()}.tmp")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, temporary)
            temporary.replace(code)
            write_whole(told, json.dumps({"seconds": seconds}).encode())
            self._drop()
        except OSError as error:
            log.debug("compiled code is not kept: %s", error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        remember(digest_of_native(file, _told(key, seconds)))

    def entries(self) -> tuple[int, int]:
        """How many there are, and their bytes."""
        sizes = [size for _, size, _ in self._entries()]
        return len(sizes), sum(sizes)

    def _drop(self) -> None:
        left = self.most
        for _, size, path in sorted(self._entries(), reverse=True):
            left -= size
            if left < 0:
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """When each was used last, its bytes, and where it is."""
        found = []
        for path in [] if self.folder is None else self.folder.glob(f"*{CODE}"):
            with suppress(OSError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        return found

    @staticmethod
    def _paths(folder: Path, key: str) -> tuple[Path, Path]:
        return folder / f"{key}{CODE}", folder / f"{key}.json"


def _told(key: str, seconds: float) -> list[object]:
    return ["cache", key, seconds]
