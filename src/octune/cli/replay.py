"""``octune replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import open_console
from octune.cli.options import AsJson, Model
from octune.cli.places import Overwrite, check_output
from octune.errors import ConfigError


@app.command()
def replay(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of a run, finished or not.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Rebuild the model that the run has found, and save it here."),
    ] = None,
    model: Model = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run has found so far, from its workspace alone. Nothing is searched, and no data is read.

    With --output its model is rebuilt, to the bit, and saved; --model names the fp32 model, where the
    workspace does not.
    """
    from octune.replay import replay as read
    from octune.report.progress import trial_table
    from octune.report.tables import result_table

    if model is not None and output is None:
        raise ConfigError(
            "--model is what the model is rebuilt from, and --output is missing: where to save it."
        )
    check_output(output, overwrite=overwrite)
    result = read(directory, rebuild=output is not None, model=model)
    saved = None if output is None else result.save(output, overwrite=overwrite)
    if as_json:
        typer.echo(result.to_json(saved_to=saved))
    else:
        console = open_console()
        console.print(trial_table([result.baseline, *result.trials]))
        console.print(result_table(result, None if saved is None else str(saved)))
    raise typer.Exit(0 if result.met else 1)
