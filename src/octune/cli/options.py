"""Arguments and options that several commands have in common, and the configuration they amount to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from octune.cli.completion import metrics, tasks
from octune.config import Config, load_config
from octune.errors import ConfigError

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the outcome only.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what goes on underneath.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the code that a saved folder holds or names, though you did not make it on this machine.",
    ),
]
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
Data = Annotated[
    Path | None,
    typer.Option(
        help="The data: an .npz file with an array for each input of the model, by its name (a single one "
        "may be named x or input), and labels as label, labels or y. With --task: the folder of its files, "
        "or the one that holds it."
    ),
]
Tokenizer = Annotated[str | None, typer.Option(help="The task's tokenizer. Default: the model's own.")]
CalibrationData = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="An .npz file of inputs to calibrate on. Default: a random fifth of --data, at most 512 rows, "
        "which then do not judge.",
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="How the model is scored: accuracy, f1, ... or package.module:function. Default: the file's or "
        "the task's; without one, how far int8 agrees with fp32.",
        autocompletion=metrics,
    ),
]
Loss = Annotated[
    str | None,
    typer.Option("--criterion", help="How much of the fp32 score may be lost, such as 0.5%. Default: 1%."),
]

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Where models are scored: local, or ray for a Ray cluster. Default: the file's, or local.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster: auto for the one that this machine is a node of, host:port, or local to start "
        "one here. Default: the file's, or auto."
    ),
]


def with_engine(config: Config, name: str | None, address: str | None) -> Config:
    """The configuration with the engine that the command line names."""
    said = {key: value for key, value in (("name", name), ("address", address)) if value is not None}
    sections = config.to_json()
    engine = {**sections["engine"], **said}
    if address is not None and engine["name"] != "ray":
        raise ConfigError("--address names a Ray cluster, which only --engine ray uses. Add --engine ray.")
    return Config.build(**{**sections, "engine": engine}) if said else config


@dataclass(frozen=True)
class Naming:
    """What the command line says about the job, alone or instead of what a file says."""

    task: str | None = None
    model: str | None = None
    data: Path | None = None
    tokenizer: str | None = None
    calibration: Path | None = None
    metric: str | None = None
    criterion: str | None = None

    def applied(self, conf: Path | None) -> Config:
        """The configuration of the file, if there is one, with what the command line names; without a file it
        must name the model and the data.
        """
        self._check(alone=conf is None)
        sections = (load_config(conf) if conf else Config()).to_json()

        def put(section: str, **keys: Any) -> None:
            sections[section] = {**(sections.get(section) or {}), **keys}

        if self.model is not None:
            put("model", path=self.model)
        for section in ("calibration", "evaluation") if self.data is not None else ():
            put(section, data=self._source(section))
        if self.calibration is not None:
            put("calibration", data={"arrays": str(self.calibration)})
        if self.metric is not None:
            put("evaluation", metric=self.metric, metric_options={})
        if self.criterion is not None:
            sections.get("criterion", {}).pop("absolute", None)
            put("criterion", relative=self.criterion)
        return Config.build(**sections)

    def _source(self, section: str) -> dict[str, str]:
        if self.task is not None:
            tokenizer = {"tokenizer": self.tokenizer} if self.tokenizer else {}
            return {"task": self.task, "folder": str(self.data), **tokenizer}
        return {"arrays": str(self.data)} | ({"part": section} if self.calibration is None else {})

    @property
    def name(self) -> str:
        """A name for the run."""
        return self.task or re.sub(r"\W+", "-", Path(self.model or "model").stem).strip("-") or "model"

    def _check(self, *, alone: bool) -> None:
        if self.task is not None and self.data is None:
            raise ConfigError(
                "--task and --data belong together: --data, the folder of its files, is missing."
            )
        if self.tokenizer is not None and self.task is None:
            raise ConfigError("--tokenizer is for the data of --task, which is missing.")
        if alone and (self.model is None or self.data is None):
            raise ConfigError(
                "Name the model and the data: give a YAML file ('octune init' writes one), or --model and "
                "--data FILE.npz, or --task, --model and --data."
            )
        if self.task is not None:
            from octune.tasks.load import check_task

            check_task(self.task)  # before a model is loaded for it
            if self.data is not None and not self.data.is_dir():
                raise ConfigError(
                    f"--data {self.data} is not a folder. Expected the folder of the task's files, or the "
                    "one that holds it."
                )
        for option, path in (("--data", self.data), ("--calibration", self.calibration)):
            if path is not None and path.suffix != ".npz" and (self.task is None or option != "--data"):
                a_folder = (
                    " is a folder, which needs a --task that says how to read it" if path.is_dir() else ""
                )
                raise ConfigError(
                    f"{option} {path}{a_folder or ' is not an .npz file'}. Expected an .npz file, as "
                    "numpy.savez writes it."
                )
