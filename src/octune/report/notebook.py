"""A run below a notebook's cell: the same table as on a terminal, drawn anew every second."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType

from octune.report.progress import LiveProgress, trial_table

__all__ = ["NotebookProgress", "as_html"]

SECONDS = 1.0
FORMAT = '<pre style="white-space:pre;line-height:1.3">{code}</pre>'


def as_html(shown: RenderableType, width: int = 120) -> str:
    """What a terminal would show, as HTML."""
    console = Console(
        file=io.StringIO(), width=width, record=True, force_jupyter=False, color_system="standard"
    )
    console.print(shown)
    return console.export_html(inline_styles=True, code_format=FORMAT)


class NotebookProgress(LiveProgress):
    """``display`` is IPython's; it returns a handle by which what is shown can be replaced."""

    def __init__(self, display: Callable[..., Any], timeout: float = 0) -> None:
        super().__init__(Console(file=io.StringIO(), force_terminal=False, force_jupyter=False), timeout)
        self._lines = False
        self._handle = display(self._data(self), raw=True, display_id=True)
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="octune-progress")
        self._ticker.start()

    def _tick(self) -> None:
        while not self._over.wait(SECONDS):
            self._handle.update(self._data(self), raw=True)

    def _data(self, shown: RenderableType) -> dict[str, str]:
        return {"text/html": as_html(shown), "text/plain": self._stage}

    def close(self) -> None:
        """The trials stay, what was going on does not."""
        if not self._over.is_set():
            self._over.set()
            self._ticker.join()
            self._stage = "done"
            self._handle.update(self._data(trial_table(self._trials)), raw=True)
        super().close()
