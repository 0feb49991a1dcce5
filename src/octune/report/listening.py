"""Who hears of a run: a listener of the user's own, a live table where somebody is watching, else the log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octune.engine.events import Listener, Silent
from octune.errors import ConfigError

__all__ = ["listening"]


@contextmanager
def listening(listener: Listener | None, *, progress: bool, timeout: float = 0) -> Iterator[Listener]:
    """A listener for a run, closed at its end, however it ends."""
    if not isinstance(progress, bool):
        raise ConfigError(
            f"progress must be True or False. Got {progress!r:.60} instead. To hear of a run, give listener=."
        )
    if listener is not None and not isinstance(listener, Listener):
        raise ConfigError(
            "listener must be an octune.Listener, whose methods are called while the run goes on. Got "
            f"{type(listener).__name__} instead. Subclass octune.Listener."
        )
    chosen = listener or (_watching(timeout) if progress else Silent())
    try:
        yield chosen
    finally:
        chosen.close()


def _watching(timeout: float) -> Listener:
    display = _notebook()
    if display is not None:
        from octune.report.notebook import NotebookProgress

        return NotebookProgress(display, timeout)
    if not sys.stderr.isatty():  # asked first: rich need not be imported for a log
        return Listener()
    from rich.console import Console

    from octune.report.progress import LiveProgress

    console = Console(stderr=True)
    return LiveProgress(console, timeout) if console.is_interactive else Listener()


def _notebook() -> Any:
    """What shows something below a notebook's cell; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display
