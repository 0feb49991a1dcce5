"""Saved folders as a forger makes them: changed, and with all of their checksums computed anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octune.artifact import MANIFEST, manifest, sealed, write_manifest
from octune.folders import sums


def forged(folder: Path, place: Path, change: Callable[[Path, dict[str, Any]], object]) -> Path:
    """A copy with ``change(folder, manifest)`` done to it, which no checksum gives away."""
    copied = place / "forged"
    shutil.copytree(folder, copied)
    data = manifest(copied)
    change(copied, data)
    files = {name: digest for name, digest in sums(copied).items() if name != MANIFEST}
    write_manifest(copied, sealed({**data, "files": files}))
    return copied
