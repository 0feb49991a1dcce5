"""``octune sign`` and ``octune verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app

Saved = Annotated[
    Path, typer.Argument(help="A saved model: what 'octune tune' or result.save wrote.", show_default=False)
]


@app.command()
def sign(
    directory: Saved,
    key: Annotated[
        Path, typer.Option("--key", "-k", metavar="FILE", help="Your private key (Ed25519, PEM).")
    ],
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make the key first; FILE.pub is for those who verify.")
    ] = False,
) -> None:
    """Sign a saved model, so that others can see that it comes from you, whole and unchanged."""
    from octune import signing
    from octune.artifact import manifest

    manifest(directory)  # before a key is made for nothing
    if new_key:
        typer.echo(f"made the key {key}; give {signing.new_key(key)} to those who verify")
    typer.echo(f"signed: {signing.sign(directory, key)}")


@app.command()
def verify(
    directory: Saved,
    key: Annotated[
        Path, typer.Option("--key", "-k", metavar="FILE", help="The public key of whoever signed it.")
    ],
) -> None:
    """Check that a saved model is the one that the owner of a key has signed. Nothing of it is run."""
    from octune import signing

    signing.verify(directory, key)
    typer.echo(f"{directory} was signed by the owner of {key}, and is unchanged")
