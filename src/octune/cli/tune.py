"""``octune tune`` and ``octune resume``."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import interruptible, open_console
from octune.cli.options import AsJson, Conf, Data, Model, Quiet, Task, Tokenizer, Verbose, named
from octune.config import Config, load_config
from octune.errors import WorkspaceError

CONFIG_COPY = "config.yaml"


@app.command()
def tune(
    conf: Conf = None,
    task: Task = None,
    model: Model = None,
    data: Data = None,
    tokenizer: Tokenizer = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to save the model. Default: <workspace>/model."),
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            help="Where the journal is kept. Default: the file's own, or octune_runs/<name>-<time>."
        ),
    ] = None,
    portable: Annotated[
        bool | None,
        typer.Option(
            "--portable/--no-portable",
            help="Safe on any x86-64 CPU, or on CPUs like this one. Default: the file's, or portable.",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Tune the model that a YAML file or the options name, and save the winner."""
    config = named(load_config(conf) if conf else Config(), task, model, data, tokenizer)
    if portable is not None:
        config = config.model_copy(
            update={"performance": config.performance.model_copy(update={"portable": portable})}
        )
    name = conf.stem if conf else task
    folder = (
        workspace or config.workspace.path or Path("octune_runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    )
    _run(
        config,
        folder,
        resume=config.workspace.resume,
        output=output,
        quiet=quiet,
        as_json=as_json,
        verbose=verbose,
    )


@app.command()
def resume(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of an interrupted run.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to save the model. Default: <workspace>/model."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Continue an interrupted run: nothing that was learned is done again."""
    path = directory / CONFIG_COPY
    if not path.exists():
        raise WorkspaceError(f"{directory} is not a workspace of 'octune tune': it has no {CONFIG_COPY}.")
    _run(
        load_config(path),
        directory,
        resume=True,
        output=output,
        quiet=quiet,
        as_json=as_json,
        verbose=verbose,
    )


def _run(
    config: Config,
    folder: Path,
    *,
    resume: bool,
    output: Path | None,
    quiet: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    from octune.report.progress import LiveProgress
    from octune.report.tables import result_table
    from octune.tune import tune as run

    console = open_console(quiet=quiet, as_json=as_json, verbose=verbose)
    config = config.model_copy(
        update={"workspace": config.workspace.model_copy(update={"path": folder, "resume": resume})}
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_COPY).write_text(config.to_yaml())
    listener = LiveProgress(console, config.tuning.timeout)
    with interruptible(f"Continue with: octune resume {folder}"), closing(listener):
        result = run(config=config, listener=listener)
    saved = result.save(output or folder / "model", overwrite=True)
    if as_json:
        typer.echo(result.to_json(saved_to=saved))
    elif quiet:
        typer.echo(
            f"{'met' if result.met else 'NOT met'}: {result.best.score}, {result.speedup or 0:.2f}x, saved "
            f"to {saved}"
        )
    else:
        console.print(result_table(result, str(saved)))
    raise typer.Exit(0 if result.met else 1)
