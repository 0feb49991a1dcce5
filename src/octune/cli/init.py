"""``octune init``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.options import CalibrationData, Data, Loss, MetricName, Model, Naming, Task
from octune.errors import ConfigError
from octune.folders import check_writable


@app.command()
def init(
    conf: Annotated[Path, typer.Argument(help="The YAML file to write.")] = Path("octune.yaml"),
    model: Model = None,
    task: Task = None,
    data: Data = None,
    calibration: CalibrationData = None,
    metric: MetricName = None,
    criterion: Loss = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: use the defaults for what no option gives.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Ask a few questions and write a YAML file with comments, for 'octune tune' to read. Options answer
    questions beforehand.
    """
    from octune.config.template import commented

    if conf.exists() and not overwrite:
        raise ConfigError(f"{conf} already exists. Give --overwrite to replace it, or another name.")
    check_writable(conf.parent, "The folder", ConfigError)
    asked = Naming(task, model, data, None, calibration, metric, criterion)
    try:
        naming = asked if yes else _ask(asked)
    except typer.Abort:
        if sys.stdin.isatty():
            typer.echo("\nInterrupted: nothing was written.", err=True)
            raise typer.Exit(130) from None
        raise ConfigError(
            "There was no answer to a question. Answer with options (octune init --help), and --yes for the "
            "others."
        ) from None
    config = naming.applied(None)
    _check_data(naming)
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(commented(config))
    typer.echo(f"Wrote {conf}. Next: octune tune {conf}")


def _ask(known: Naming) -> Naming:
    """Everything that options have not answered."""
    model = known.model or typer.prompt(
        "Model (a Hugging Face folder, .onnx, .pb, .keras, .pt2, SavedModel folder, package.module:factory)"
    )
    task, data = known.task, known.data
    if data is None:
        answer = typer.prompt("Data (an .npz file, or a folder with the files of a known task)")
        data = Path(answer)
    if task is None and data.suffix != ".npz":
        from octune.tasks.load import task_names

        task = typer.prompt(f"Task ({', '.join(task_names())})")
    calibration, metric = known.calibration, known.metric
    if task is None:
        if calibration is None:
            answer = typer.prompt(
                "Calibration data (another .npz file; Enter: a part of the data, which then does not judge)",
                default="",
                show_default=False,
            )
            calibration = Path(answer) if answer else None
        if metric is None:
            answer = typer.prompt(
                "Metric (accuracy, f1, ... or package.module:function; Enter: agreement with fp32)",
                default="",
                show_default=False,
            )
            metric = answer or None
    criterion = known.criterion or typer.prompt("How much of the fp32 score may be lost", default="1%")
    return Naming(task, model, data, None, calibration, metric, criterion)


def _check_data(naming: Naming) -> None:
    """What the file will name must be there, and fit the metric."""
    if naming.task is not None or naming.data is None:
        return
    from octune.arrays import ArrayBatches
    from octune.evaluation.metrics import get_metric

    if naming.metric is not None and ":" not in naming.metric:
        get_metric(naming.metric)
    labelled = ArrayBatches(naming.data, 1).labelled
    if naming.calibration is not None:
        ArrayBatches(naming.calibration, 1)
    if naming.metric not in (None, "agreement") and not labelled:
        raise ConfigError(
            f"{naming.metric} needs labels, and {naming.data} has none. Add an array named label, or leave "
            "the metric out: then the criterion is agreement with fp32."
        )
