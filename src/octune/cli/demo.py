"""``octune demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import interruptible, open_console
from octune.cli.options import AsJson, Verbose
from octune.cli.places import Overwrite, check_output

OUTPUT = Path("octune_runs/demo/model")


@app.command()
def demo(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=f"Where to save the int8 model. Default: {OUTPUT}."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fetch a small BERT and real movie reviews, train a sentiment head, and tune it: the whole job in a few
    minutes.
    """
    from octune.demo.run import run_demo
    from octune.report.tables import result_table

    check_output(output, overwrite=overwrite)
    console = open_console(as_json=as_json, verbose=verbose)
    with interruptible("What was fetched is kept for the next time."):
        result = run_demo(console)
    saved = result.save(output or OUTPUT, overwrite=True)
    if as_json:
        typer.echo(result.to_json(saved_to=saved))
    else:
        console.print(result_table(result, str(saved)))
        console.print(f"[dim]load it with: octune.load({str(saved)!r})[/dim]")
    raise typer.Exit(0 if result.met else 1)
