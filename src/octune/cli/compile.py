"""``octune compile``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import interruptible, open_console
from octune.cli.options import AsJson, Quiet, Trust, Verbose


@app.command()
def compile(
    directory: Annotated[
        Path, typer.Argument(help="A saved model: what 'octune tune' wrote.", show_default=False)
    ],
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Compile a saved model anew, for this machine, from the graph in its folder.

    Nothing is scored: the plan and the weights stay, and the outputs must be those of the graph. The folder
    is replaced in one step. Only PyTorch models have a compiled form.
    """
    console = open_console(quiet=quiet, as_json=as_json, verbose=verbose)
    from octune.compiling import compile_saved

    with interruptible("The folder was left as it is."), console.status("compiling"):
        distance = compile_saved(directory, trust=trust)
    if as_json:
        typer.echo(json.dumps({"compiled": str(directory), "distance": distance}))
    else:
        told = "" if quiet else f": its outputs differ from the graph's by {distance:.2g} of their variance"
        typer.echo(f"compiled {directory}{told}")
