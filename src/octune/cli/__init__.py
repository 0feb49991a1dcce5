"""The ``octune`` command: one module for each subcommand, in the order in which ``--help`` lists them."""

<<<<<<< HEAD
from octune.cli import tune, replay, report, check, bench, analyze, export, demo, doctor, config  # noqa: F401, I001  (each adds itself to app)
=======
from octune.cli import tune, init, replay, report, check, analyze, export, demo, doctor, config  # noqa: F401, I001  (each adds itself to app)
>>>>>>> c9472e4 (octune tune from a model and a file of arrays, without YAML; octune init writes a commented YAML file)
from octune.cli.app import app, main

__all__ = ["app", "main"]
