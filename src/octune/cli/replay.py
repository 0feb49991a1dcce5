"""``octune replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import open_console
from octune.cli.options import AsJson


@app.command()
def replay(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of a run, finished or not.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a run has found so far, from its workspace alone. Nothing is run."""
    from octune.replay import replay as read
    from octune.report.progress import trial_table
    from octune.report.tables import result_table

    result = read(directory)
    if as_json:
        typer.echo(result.to_json())
    else:
        console = open_console()
        console.print(trial_table([result.baseline, *result.trials]))
        console.print(result_table(result, None))
    raise typer.Exit(0 if result.met else 1)
