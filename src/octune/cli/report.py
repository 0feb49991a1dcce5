"""``octune report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app


@app.command()
def report(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of a run, finished or not.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. Default: <directory>/report.html."),
    ] = None,
) -> None:
    """Show a run as one HTML file: verdict, trials, every op, where the time went. Nothing is run."""
    from octune.report.html import write_report

    written = write_report(directory, output or directory / "report.html")
    typer.echo(f"report written to {written}")
