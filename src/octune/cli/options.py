"""Arguments and options that several commands have in common, and the configuration they amount to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octune.cli.completion import tasks
from octune.config import Config
from octune.errors import ConfigError

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the outcome only.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what goes on underneath.")]
Conf = Annotated[
    Path | None, typer.Argument(help="A YAML file: native, iLiT or LPOT dialect.", show_default=False)
]
Task = Annotated[
    str | None,
    typer.Option(
        help="A known task, such as cola or squad, instead of a file or of the file's data.",
        autocompletion=tasks,
    ),
]
Model = Annotated[str | None, typer.Option(help="The model: as model.path in a file.")]
Data = Annotated[Path | None, typer.Option(help="The folder of the task's files, or the one that holds it.")]
Tokenizer = Annotated[str | None, typer.Option(help="The task's tokenizer. Default: the model's own.")]


def named(
    config: Config, task: str | None, model: str | None, data: Path | None, tokenizer: str | None
) -> Config:
    """The configuration with the model and the task that the command line names; without a file it must name
    all of them.
    """
    if (task is None) != (data is None):
        raise ConfigError(
            f"--task and --data belong together: {'--data, the folder of its files,' if task else '--task'} "
            "is missing."
        )
    if tokenizer is not None and task is None:
        raise ConfigError("--tokenizer is for the data of --task, which is missing.")
    if config == Config() and (task is None or model is None):
        raise ConfigError("Name the model: give a YAML file, or --task, --model and --data.")
    if task is not None:
        from octune.tasks.load import check_task

        check_task(task)  # before a model is loaded for it
    if data is not None and not data.is_dir():
        raise ConfigError(
            f"--data {data} is not a folder. Expected the folder of the task's files, or the one that holds "
            "it."
        )
    sections = config.to_json()
    if model is not None:
        sections["model"] = {**(sections.get("model") or {}), "path": model}
    for section in ("calibration", "evaluation") if task is not None else ():
        source = {"task": task, "folder": str(data)} | ({"tokenizer": tokenizer} if tokenizer else {})
        sections[section] = {**(sections.get(section) or {}), "data": source}
    return Config.build(**sections)
