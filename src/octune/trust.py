"""Which saved models and workspaces this user has made on this machine: only their code, and what they
name, may run.

    remember(digest)        # when a model is saved, or compiled
    made_here(digest)       # when it is loaded

The checksums in a saved folder are not a signature: whoever forges the folder forges them too. So the digests
of what was made here are kept outside of all folders, one empty file for each, in ``$XDG_STATE_HOME/octune``
or ``~/.local/state/octune``. A file that is there or not cannot be half written, and needs no lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune.folders import sha256

if TYPE_CHECKING:
    from octune.config import Config

__all__ = ["digest_of_name", "digest_of_native", "digest_of_run", "made_here", "remember"]

log = logging.getLogger("octune")
DIGEST = re.compile(r"[0-9a-f]{64}")


def remember(digest: str) -> None:
    """Record what was made here. Where that cannot be written, the model is one of a stranger later."""
    try:
        folder = _record()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(folder / digest, os.O_CREAT | os.O_WRONLY, 0o600))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        log.warning(
            "it cannot be recorded that this model was made here (%s): to load its compiled form or call its "
            "factory takes octune.load(folder, trust=True)",
            error,
        )


def made_here(digest: str) -> bool:
    """Whether :func:`remember` was told this digest, by this user. A record that others can write to does not
    count.
    """
    if not DIGEST.fullmatch(digest):
        return False
    try:
        folder = _record()
        return _only_mine(folder.stat()) and _only_mine((folder / digest).lstat())
    except (OSError, RuntimeError):
        return False


def digest_of_name(name: str, folder: str) -> str:
    """The digest of the model that this user has named, in that folder: the same name means another file or
    another module elsewhere.
    """
    return hashlib.sha256(json.dumps(["name", folder, name]).encode()).hexdigest()


def digest_of_run(config: Config) -> str:
    """The digest of a run that this user began, in this folder: of all that its configuration says, except
    where it is kept and when it stops. To look for what in it could run code would miss something.
    """
    told = config.to_json()
    told["workspace"] = None
    told["tuning"] |= {"max_trials": None, "timeout": None}
    return hashlib.sha256(json.dumps(["run", os.getcwd(), told], sort_keys=True).encode()).hexdigest()


def digest_of_native(file: Path, told: Any) -> str:
    """The digest of compiled code and of what is told of it: how it may be called is a part of what is
    trusted.
    """
    return hashlib.sha256(json.dumps([sha256(file), told], sort_keys=True).encode()).hexdigest()


def _record() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "octune" / "made-here"


def _only_mine(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
