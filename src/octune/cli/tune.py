"""``octune tune`` and ``octune resume``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import interruptible, open_console
from octune.cli.options import (
    Address,
    AsJson,
    CalibrationData,
    Conf,
    Data,
    EngineName,
    Loss,
    MetricName,
    Model,
    Naming,
    Quiet,
    Task,
    Tokenizer,
    Trust,
    Verbose,
    with_engine,
)
from octune.cli.places import Overwrite, check_output, run_folder, saving_notes
from octune.config import Config, load_config
from octune.engine.journal import not_a_workspace
from octune.engine.stop import INTERRUPTED
from octune.errors import WorkspaceError, plural
from octune.folders import write_whole
from octune.sources import named
from octune.trust import digest_of_run, made_here, remember

CONFIG_COPY = "config.yaml"
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Where to save the model. Default: <workspace>/model."),
]


@app.command()
def tune(
    conf: Conf = None,
    task: Task = None,
    model: Model = None,
    data: Data = None,
    tokenizer: Tokenizer = None,
    calibration: CalibrationData = None,
    metric: MetricName = None,
    criterion: Loss = None,
    output: Output = None,
    overwrite: Overwrite = False,
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
    engine: EngineName = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Tune the model that a YAML file or the options name, and save the winner."""
    naming = Naming(task, model, data, tokenizer, calibration, metric, criterion)
    config = with_engine(naming.applied(conf), engine, address)
    if portable is not None:
        config = config.model_copy(
            update={"performance": config.performance.model_copy(update={"portable": portable})}
        )
    name = conf.stem if conf else naming.name
    folder = (
        workspace or config.workspace.path or Path("octune_runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    )
    _run(
        config,
        folder,
        resume=config.workspace.resume,
        output=output,
        overwrite=overwrite,
        quiet=quiet,
        as_json=as_json,
        verbose=verbose,
    )


@app.command()
def resume(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of an interrupted run.", show_default=False)
    ],
    max_trials: Annotated[
        int | None, typer.Option(help="The largest number of plans to try, from now on.", show_default=False)
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds to search, with those that the run has had already.", show_default=False),
    ] = None,
    output: Output = None,
    overwrite: Overwrite = False,
    engine: EngineName = None,
    address: Address = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Continue an interrupted run: nothing that was learned is done again. One that has ended goes on where a
    limit is raised.
    """
    path = directory / CONFIG_COPY
    if not path.is_file():
        raise WorkspaceError(not_a_workspace(directory, CONFIG_COPY))
    config = load_config(path)
    if not trust and not made_here(digest_of_run(config)):
        raise WorkspaceError(
            f"The run in {directory} was not begun by you on this machine and from this folder, or its "
            f"{CONFIG_COPY} was changed. What it names may run code here: {', '.join(named(config))}. "
            "Look at it, and give --trust if it may."
        )
    sections = config.to_json()
    limits = {"max_trials": max_trials, "timeout": timeout}
    sections["tuning"] |= {name: limit for name, limit in limits.items() if limit is not None}
    _run(
        with_engine(Config.build(**sections), engine, address),
        directory,
        resume=True,
        output=output,
        overwrite=overwrite,
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
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    from octune.report.progress import LiveProgress
    from octune.report.tables import result_table
    from octune.tune import tune as run

    check_output(output, overwrite=overwrite)
    console = open_console(quiet=quiet, as_json=as_json, verbose=verbose)
    config = config.model_copy(
        update={"workspace": config.workspace.model_copy(update={"path": folder, "resume": resume})}
    )
    advice = f"Continue with: octune resume {folder}"
    listener = LiveProgress(console, config.tuning.timeout)
    with run_folder(folder), interruptible(advice) as interrupts, closing(listener):
        remember(digest_of_run(config))  # before there is anything to resume
        try:
            write_whole(folder / CONFIG_COPY, config.to_yaml().encode())
        except OSError as error:
            raise WorkspaceError(
                f"The workspace {folder} cannot be written: {error}. Choose another --workspace."
            ) from error
        result = run(config=config, listener=listener)
    if result.stopped_because.startswith(INTERRUPTED):
        # What was found is in the journal. To save it would make a model of it that nobody has chosen.
        if as_json:
            typer.echo(result.to_json())
        trials = plural(len(result.trials), "trial")
        typer.echo(f"Interrupted after {trials}; no model is saved. {advice}", err=True)
        raise typer.Exit(interrupts.code)
    saved = result.save(output or folder / "model", overwrite=True)
    result = replace(result, notes=(*result.notes, *saving_notes(saved)))
    if as_json:
        typer.echo(result.to_json(saved_to=saved))
    elif quiet:
        typer.echo(
            f"{'met' if result.met else 'NOT met'}: {result.best.score}, {result.speedup or 0:.2f}x, saved "
            f"to {saved}"
        )
    else:
        console.print(result_table(result, str(saved)))
        console.print(f"see it with: octune report {folder}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if result.met else 1)
