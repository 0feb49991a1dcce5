"""``octune doctor``."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from octune.cli.app import app
from octune.cli.options import AsJson


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can do: CPU features, threads, frameworks, and which int8 paths are fast here."""
    from octune.report.doctor import examine, show

    findings = examine()
    if as_json:
        typer.echo(json.dumps(findings, indent=1))
    else:
        show(findings, Console())
