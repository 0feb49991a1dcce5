"""``octune export``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from octune.cli.app import app
from octune.cli.completion import layouts
from octune.cli.console import interruptible, open_console
from octune.cli.options import (
    AsJson,
    CalibrationData,
    Data,
    Loss,
    MetricName,
    Model,
    Naming,
    Quiet,
    Task,
    Tokenizer,
    Trust,
    Verbose,
)
from octune.errors import CriterionError

HELP = """Write a saved model as a folder that a server takes as it is.

No server runs a PyTorch model, and LiteRT has other ops than TensorFlow: there the plan is applied to the
converted fp32 model, and scored before it is written. For that, name the fp32 model and its data, as for
'octune tune'."""


@app.command(help=HELP)
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
            "Model Server), tfserving (TensorFlow Serving), litert (.tflite).",
            autocompletion=layouts,
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
    conf: Annotated[
        Path | None,
        typer.Option("--config", help="The YAML file that it was tuned with: fp32 model and data."),
    ] = None,
    task: Task = None,
    model: Model = None,
    data: Data = None,
    tokenizer: Tokenizer = None,
    calibration: CalibrationData = None,
    metric: MetricName = None,
    criterion: Loss = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """See HELP."""
    from octune.export import export as write
    from octune.report.progress import LiveProgress

    naming = Naming(task, model, data, tokenizer, calibration, metric)
    listener = LiveProgress(open_console(quiet=quiet, as_json=as_json, verbose=verbose))
    fp32: dict[str, Any] = {}
    if conf is not None or naming != Naming():
        fp32 = {"config": naming.applied(conf), "criterion": criterion, "listener": listener}
    try:
        with interruptible("Nothing was written."), closing(listener):
            written = write(
                directory,
                layout,
                output,
                name=name,
                huggingface=huggingface,
                overwrite=overwrite,
                trust=trust,
                **fp32,
            )
    except CriterionError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    done = {"layout": layout, "written_to": str(written)}
    typer.echo(json.dumps(done) if as_json else f"written to {written}")
