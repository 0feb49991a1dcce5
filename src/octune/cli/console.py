"""Where a command prints, and what it says when it is interrupted."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.logging import RichHandler

__all__ = ["Interrupts", "interruptible", "open_console"]


def open_console(*, quiet: bool = False, as_json: bool = False, verbose: bool = False) -> Console:
    """Progress goes to standard error when standard output carries JSON."""
    console = Console(stderr=as_json, quiet=quiet)
    level = logging.DEBUG if verbose else logging.ERROR
    logging.getLogger("octune").handlers = [RichHandler(console=Console(stderr=True), show_path=False)]
    logging.getLogger("octune").setLevel(level)
    logging.getLogger("octune").propagate = False
    if not verbose:
        warnings.filterwarnings("ignore")
        for library in ("torch", "torch.utils._pytree", "torchao", "transformers"):
            logging.getLogger(library).setLevel(logging.ERROR)
        # Progress bars and advice of libraries would tear the live table.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    return console


class Interrupts:
    """Which signal has asked this process to come to its end; the exit code that says so."""

    def __init__(self) -> None:
        self._asked = signal.SIGINT

    @property
    def code(self) -> int:
        return 128 + self._asked

    def __call__(self, signum: int, frame: Any) -> None:
        """SIGTERM and SIGHUP do what Ctrl-C does."""
        self._asked = signal.Signals(signum)
        if signum == signal.SIGHUP:  # there is no terminal any more that anything could be written to
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (sys.stdout, sys.stderr):
                if stream.isatty():
                    os.dup2(nowhere, stream.fileno())
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        raise KeyboardInterrupt


@contextmanager
def interruptible(advice: str) -> Iterator[Interrupts]:
    """Ctrl-C, SIGTERM or a closed terminal before there is anything to hand back: a message, and the exit
    code that says so.
    """
    interrupts = Interrupts()
    # Those that are ignored stay so: nohup does that.
    replaced = [sign for sign in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(sign) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        replaced = []
    for sign in replaced:
        signal.signal(sign, interrupts)
    try:
        yield interrupts
    except KeyboardInterrupt:
        typer.echo(f"Interrupted before there was anything to hand back. {advice}", err=True)
        raise typer.Exit(interrupts.code) from None
    finally:
        for sign in replaced:
            signal.signal(sign, signal.SIG_DFL)
