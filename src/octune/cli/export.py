"""``octune export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.options import AsJson


@app.command()
def export(
    directory: Annotated[
        Path,
        typer.Argument(help="A saved model: what 'octune tune' or result.save wrote.", show_default=False),
    ],
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            "-l",
            help="hf (optimum, sentence-transformers, text-embeddings-inference), triton, ovms (OpenVINO "
            "Model Server).",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write; for a server, its folder of models.")
    ],
    name: Annotated[
        str | None, typer.Option(help="What the server calls the model. Default: the name of its folder.")
    ] = None,
    huggingface: Annotated[
        Path | None,
        typer.Option(help="A folder with config.json and tokenizer, if the model was saved without them."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a saved model as a folder that a server takes as it is."""
    from octune.export import export as write

    written = write(directory, layout, output, name=name, huggingface=huggingface, overwrite=overwrite)
    typer.echo(
        json.dumps({"layout": layout, "written_to": str(written)}) if as_json else f"written to {written}"
    )
