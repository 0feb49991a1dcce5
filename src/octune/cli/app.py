"""The command itself: its root, and what becomes of errors.

Exit codes: 0 the criterion is met, 1 it is not, 2 bad input, 3 an error that is not
Octune's own, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from octune.errors import OctuneError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Turn a trained fp32 model into the fastest int8 model that keeps its accuracy.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from octune import __version__

        typer.echo(f"octune {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command; an error of Octune's own is one message and exit code 2, never a traceback."""
    # Threads that wait for each other by spinning make a run crawl as soon as another process wants a core.
    # GNU OpenMP reads this when the framework is imported, so it must be set before.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # TensorFlow logs how it was built at every start. Its errors are still shown.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        app()
    except OctuneError as error:
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), str(error)))
        sys.exit(2)
    except Exception:
        # Python would end with 1, which says that the criterion is not met.
        traceback.print_exc()
        sys.exit(3)
