"""Timings of ops kept from run to run: the same op on the same machine, threads and versions is not timed
again.

    cache = CostCache.of(backend)
    cache.get(key), cache.add(times)

A second run then also decides on the very numbers of the first. One small JSON file for each machine and set
of versions, in ``$OCTUNE_CACHE`` (``~/.cache/octune``); ``OCTUNE_COST_CACHE=off`` does without. A file that
cannot be read or written is treated as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune.folders import cache_folder, write_whole
from octune.machine import probe_machine

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["CostCache"]

log = logging.getLogger("octune")
VERSION = 2
HOURS = 30 * 24


class CostCache:
    """Milliseconds by key. Without a path it remembers nothing."""

    def __init__(self, path: Path | None, conditions: Mapping[str, Any]) -> None:
        self._path, self._conditions = path, dict(conditions)
        self._known: dict[str, tuple[float, float]] = {} if path is None else _read(path, self._conditions)

    @classmethod
    def of(cls, backend: Backend) -> CostCache:
        """The cache for this machine and this backend's versions and settings."""
        conditions = {"version": VERSION, "machine": probe_machine().to_json(), **backend.environment()}
        if os.environ.get("OCTUNE_COST_CACHE", "").lower() in ("off", "0", "false", "no"):
            return cls(None, conditions)
        digest = hashlib.sha256(json.dumps(conditions, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return cls(
            cache_folder() / "costs" / f"{digest}.json", json.loads(json.dumps(conditions, default=str))
        )

    def get(self, key: tuple[Any, ...]) -> float | None:
        """What was measured for this key, if that is not too long ago."""
        found = self._known.get(_name(key))
        return found[0] if found is not None and time.time() < found[1] else None

    def add(self, times: Mapping[tuple[Any, ...], float], hours: float = HOURS) -> None:
        """Keep timings for this many hours; another process that writes at the same time loses nothing but
        its own.
        """
        if self._path is None or not times:
            return
        until = int(time.time() + 3600 * hours)
        self._known = {
            **_read(self._path, self._conditions),
            **{_name(key): (ms, until) for key, ms in times.items()},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            told = {"conditions": self._conditions, "milliseconds": self._known}
            write_whole(self._path, json.dumps(told).encode())
        except OSError as error:
            log.debug("timings are not kept: %s", error)


def _name(key: tuple[Any, ...]) -> str:
    return json.dumps(key)


def _read(path: Path, conditions: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    try:
        data = json.loads(path.read_text())
        if data["conditions"] != conditions:
            return {}
        return {name: (float(ms), float(until)) for name, (ms, until) in data["milliseconds"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.debug("kept timings in %s cannot be read: %s", path, error)
        return {}
