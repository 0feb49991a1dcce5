"""``octune check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from octune.cli.app import app
from octune.cli.completion import metrics, tasks
from octune.cli.console import interruptible, open_console
from octune.cli.options import AsJson, Quiet, Tokenizer, Trust, Verbose
from octune.config import Config, load_config
from octune.errors import ConfigError, OctuneError
from octune.folders import check_file, write_whole

YAML = (".yaml", ".yml")


@app.command()
def check(
    fp32: Annotated[
        str,
        typer.Argument(
            help="The original: a folder that Octune saved, an .onnx, .xml, .tflite, .pb, .keras or .pt2 "
            "file, a SavedModel or Hugging Face folder, or package.module:factory.",
            show_default=False,
        ),
    ],
    int8: Annotated[
        str, typer.Argument(help="The int8 model, of the same or another kind.", show_default=False)
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="An .npz file with inputs by name and labels; package.module:factory; or, with --task, the "
            "folder of the task's files."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="A known task, such as sst-2 or squad.", autocompletion=tasks)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="A YAML file: its evaluation and criterion are used.", show_default=False
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="accuracy, f1, spearmanr, ... or package.module:function. Default: the task's; accuracy for "
            "labels that are class numbers; agreement with fp32 without labels.",
            autocompletion=metrics,
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            help="What may be lost: 1% of the fp32 score (the default), or absolute:0.5 in the metric's unit."
        ),
    ] = None,
    confidence: Annotated[
        str | None, typer.Option(help="How sure a pass must be, such as 95%: then undecidable is not a pass.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use only the first items, this many.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Items in a batch. Default: 32.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of both models. Default: all cores.")
    ] = None,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Whether to time both in turns.")
    ] = True,
    junit: Annotated[
        Path | None, typer.Option(help="Also write the verdict to this file, as JUnit XML.")
    ] = None,
    flips: Annotated[
        Path | None, typer.Option(help="Also list the items that flipped in this file: .csv, or .jsonl.")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Judge an int8 model against its fp32 original, whoever made it: score, flips, speed, and a verdict.

    Exits with 0 if the drop is allowed, 1 if it is not, 2 for bad input. A verdict of "undecidable" exits as
    the drop alone says, or with 1 if a --confidence is asked for.
    """
    for name, path in (("--junit", junit), ("--flips", flips)):
        if path is not None:
            check_file(path, name, ConfigError)
    settings = _settings(config, data, task, tokenizer, metric, confidence, samples, batch_size, threads)
    console = open_console(quiet=quiet, as_json=as_json, verbose=verbose)
    from octune.check import check as run
    from octune.report.check import check_table, flips_text, junit_error, verdict_line
    from octune.report.check import junit as junit_xml

    asked: dict[str, Any] = {
        "config": settings,
        "criterion": _criterion(criterion),
        "timing": timing,
        "trust": trust,
    }
    try:
        with interruptible("Nothing was written."), console.status("") as status:
            found = run(fp32, int8, **asked, progress=status.update)
    except OctuneError as error:
        if junit is not None:  # a CI that looks for the file should find out why there is no verdict
            write_whole(junit, junit_error(f"{int8} against {fp32}", str(error)))
        raise
    if junit is not None:
        write_whole(junit, junit_xml(found))
    if flips is not None:
        write_whole(flips, flips_text(found, flips).encode())
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    elif quiet:
        typer.echo(verdict_line(found))
    else:
        console.print(check_table(found))
    raise typer.Exit(0 if found.met else 1)


def _criterion(text: str | None) -> Any:
    """``1%`` is of fp32's score, ``absolute:0.5`` is in the metric's own unit."""
    kind, colon, amount = (text or "").rpartition(":")
    return {kind.strip(): amount.strip()} if colon else text


def _settings(
    config: Path | None,
    data: str | None,
    task: str | None,
    tokenizer: str | None,
    metric: str | None,
    confidence: str | None,
    samples: int | None,
    batch_size: int | None,
    threads: int | None,
) -> Config:
    """The file's configuration, with what the options say instead."""
    sections = (load_config(config) if config else Config()).to_json()
    evaluation = dict(sections.get("evaluation") or {})
    if data is not None and Path(data).suffix in YAML:
        raise ConfigError(f"--data {data} is a configuration: give it as --config {data}.")
    if task is not None:
        from octune.tasks.load import check_task

        check_task(task)
        if data is None or not Path(data).is_dir():
            raise ConfigError(
                f"--task {task} needs --data, the folder of its files. Got {data or 'nothing'} instead."
            )
        evaluation["data"] = {"task": task, "folder": data} | ({"tokenizer": tokenizer} if tokenizer else {})
    elif tokenizer is not None:
        raise ConfigError("--tokenizer is for the data of --task, which is missing.")
    elif data is not None:
        if Path(data).is_dir():
            raise ConfigError(f"--data {data} is a folder: --task says how to read it, such as --task sst-2.")
        evaluation["data"] = data
    if metric is not None:
        evaluation |= {"metric": metric, "metric_options": {}}
    if samples is not None and batch_size is None:
        # Data is read in whole batches.
        batch_size = min(samples, Config.build(evaluation=evaluation).evaluation.batch_size)
    evaluation |= {k: v for k, v in {"samples": samples, "batch_size": batch_size}.items() if v is not None}
    changed = {**sections, "evaluation": evaluation}
    if confidence is not None:
        changed["criterion"] = {**(sections.get("criterion") or {}), "confidence": confidence}
    if threads is not None:
        changed["performance"] = {**(sections.get("performance") or {}), "threads": threads}
    return Config.build(**changed)
