"""Where a command prints, and what it says when it is interrupted."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.logging import RichHandler

__all__ = ["interruptible", "open_console"]


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


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C before there is anything to hand back: a message, and the exit code that says so."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Interrupted before there was anything to hand back. {advice}", err=True)
        raise typer.Exit(130) from None
