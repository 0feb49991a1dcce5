"""Where a command writes: checked before it begins, and left as it was if nothing came of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from octune.artifact import MANIFEST
from octune.engine.journal import JOURNAL
from octune.errors import ArtifactError, WorkspaceError
from octune.folders import check_writable

__all__ = ["Overwrite", "check_output", "run_folder", "saving_notes"]

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a saved model that is already in --output.")
]


def check_output(folder: Path | None, *, overwrite: bool) -> None:
    """Refuse, before a run, what a model could not be saved to after it."""
    if folder is None:
        return
    check_writable(folder, "--output", ArtifactError)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not (folder / MANIFEST).exists():
        raise ArtifactError(
            f"--output {folder} exists and is not a saved model, so it is not overwritten. Choose another "
            "folder."
        )
    if not overwrite:
        raise ArtifactError(
            f"--output {folder} holds a saved model. Give --overwrite to replace it, or choose another "
            "folder."
        )


def saving_notes(saved: Path) -> list[str]:
    """What a user must know to load the model that was saved, if there is anything."""
    notes: list[str] = json.loads((saved / MANIFEST).read_text())["backend"].get("notes", [])
    return notes


@contextmanager
def run_folder(folder: Path) -> Iterator[None]:
    """The folder of a run. If the run ends in an error before anything was learned, what it has written is
    removed again.
    """
    check_writable(folder, "The workspace", WorkspaceError)
    made = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    before = set(folder.iterdir()) if folder.exists() else set()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except Exception:
        with suppress(OSError):  # the folder has vanished, or cannot be written any more
            if not _learned(folder):
                _undo(folder, before, made)
        raise


def _learned(folder: Path) -> bool:
    """Whether the score of the fp32 model is in the journal; all that comes before it is cheap."""
    journal = folder / JOURNAL
    return journal.exists() and b'{"event": "baseline"' in journal.read_bytes()


def _undo(folder: Path, before: set[Path], made: list[Path]) -> None:
    for path in set(folder.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for place in made:
        if not any(place.iterdir()):
            place.rmdir()
