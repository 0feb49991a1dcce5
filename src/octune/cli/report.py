"""``octune report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.engine.journal import JOURNAL
from octune.errors import ConfigError

PORT = 8733


@app.command()
def report(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of a run, finished or not.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. Default: <directory>/report.html."),
    ] = None,
    model_explorer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write harm and time of every node for Google's Model Explorer: FILE and FILE-ms.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page that refreshes itself while the run goes on.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help=f"Where --watch serves, on this machine only; 0: any. Default: {PORT}."
        ),
    ] = None,
) -> None:
    """Show a run as one HTML file: verdict, trials, every op, where the time went. Nothing is run."""
    from octune.report.html.page import gather, workspace_of, write_report
    from octune.report.model_explorer import write_overlays

    if port is not None and not watch:
        raise ConfigError("--port is where --watch serves. Add --watch, or leave --port out.")
    if watch:
        directory = workspace_of(directory)
        _watch(directory, PORT if port is None else port)
        if not (directory / JOURNAL).exists():
            typer.echo(f"no run has begun in {directory}", err=True)
            raise typer.Exit(130)
    written = [write_report(directory, output or directory / "report.html")]
    if model_explorer is not None:
        written += write_overlays(gather(directory), model_explorer)
    for path in written:
        typer.echo(f"written to {path}")


def _watch(directory: Path, port: int) -> None:
    """Returns when the run has ended; after Ctrl-C too, since the report so far is worth keeping."""
    from octune.report.html.watch import Watch

    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a folder. Expected the workspace of a run.")
    with Watch(directory, port) as served:
        try:
            typer.echo(f"watching {directory} at {served.url}, until the run ends or Ctrl-C")
            served.until_it_ends()
        except KeyboardInterrupt:
            typer.echo("")
