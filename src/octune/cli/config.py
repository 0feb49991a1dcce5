"""``octune config``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.config import Config, load_config


@app.command()
def config(
    conf: Annotated[Path | None, typer.Argument(help="A YAML file in any dialect.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the native dialect.")
    ] = False,
) -> None:
    """Print the effective configuration of a YAML file, or the schema."""
    if schema:
        typer.echo(Config.schema_json())
    elif conf is not None:
        typer.echo(load_config(conf).to_yaml(), nl=False)
    else:
        raise typer.BadParameter("give a YAML file, or --schema")
