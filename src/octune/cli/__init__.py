"""The ``octune`` command: one module for each subcommand, in the order in which ``--help`` lists them."""

from octune.cli import tune, init, replay, report, check, bench, analyze, compile, sign, export, demo, doctor  # noqa: F401, I001
from octune.cli import config  # noqa: F401  (each adds itself to app)
from octune.cli.app import app, main

__all__ = ["app", "main"]
