"""Where Octune keeps what need not be made twice: the demo's files, timings of ops."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """``$OCTUNE_CACHE``, or ``~/.cache/octune``; it need not exist yet."""
    return Path(os.environ.get("OCTUNE_CACHE") or "~/.cache/octune").expanduser()
