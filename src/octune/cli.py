"""The ``octune`` command: tune, resume, replay, analyze, demo, doctor, config.

Exit codes: 0 the criterion is met, 1 it is not, 2 bad input, 130 interrupted with nothing to hand back.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from octune.config import Config, load_config
from octune.errors import ConfigError, OctuneError, WorkspaceError
from octune.result import Result, Trial

__all__ = ["app", "main"]

app = typer.Typer(
    help="Turn a trained fp32 model into the fastest int8 model that keeps its accuracy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
CONFIG_COPY = "config.yaml"

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
    typer.Option(help="A known task, such as cola or squad, instead of a file or of the file's data."),
]
Model = Annotated[str | None, typer.Option(help="The model: as model.path in a file.")]
Data = Annotated[Path | None, typer.Option(help="The folder of the task's files, or the one that holds it.")]
Tokenizer = Annotated[str | None, typer.Option(help="The task's tokenizer. Default: the model's own.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from octune import __version__

        typer.echo(f"octune {__version__}")
        raise typer.Exit


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
    config = _named(load_config(conf) if conf else Config(), task, model, data, tokenizer)
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


@app.command()
def replay(
    directory: Annotated[
        Path, typer.Argument(help="The workspace of a run, finished or not.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a run has found so far, from its workspace alone. Nothing is run."""
    from octune.replay import replay as read
    from octune.report.progress import trial_table
    from octune.report.tables import result_table

    result = read(directory)
    if as_json:
        typer.echo(json.dumps(summary(result), indent=1))
    else:
        console = _console()
        console.print(trial_table([result.baseline, *result.trials]))
        console.print(result_table(result, None))
    raise typer.Exit(0 if result.met else 1)


def _named(
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

    console = _console(quiet=quiet, as_json=as_json, verbose=verbose)
    config = config.model_copy(
        update={"workspace": config.workspace.model_copy(update={"path": folder, "resume": resume})}
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_COPY).write_text(config.to_yaml())
    listener = LiveProgress(console, config.tuning.timeout)
    with _interruptible(f"Continue with: octune resume {folder}"), closing(listener):
        result = run(config=config, listener=listener)
    saved = result.save(output or folder / "model", overwrite=True)
    if as_json:
        typer.echo(json.dumps(summary(result, saved), indent=1))
    elif quiet:
        typer.echo(
            f"{'met' if result.met else 'NOT met'}: {result.best.score}, {result.speedup or 0:.2f}x, saved "
            f"to {saved}"
        )
    else:
        console.print(result_table(result, str(saved)))
    raise typer.Exit(0 if result.met else 1)


@contextmanager
def _interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C before there is anything to hand back: a message, and the exit code that says so."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Interrupted before there was anything to hand back. {advice}", err=True)
        raise typer.Exit(130) from None


def summary(result: Result, saved: Path | None = None) -> dict[str, Any]:
    """A result as plain data, without the per-item scores."""

    def short(trial: Trial) -> dict[str, Any]:
        data = trial.summary()
        return data | {
            "plan_digest": data.pop("plan"),
            "verdict": str(trial.verdict) if trial.verdict else None,
        }

    return {
        "met": result.met,
        "stopped_because": result.stopped_because,
        "criterion": result.criterion.to_json(),
        "baseline": short(result.baseline),
        "best": short(result.best),
        "trials": [short(trial) for trial in result.trials],
        "plan": result.plan.to_json(),
        "kept": dict(result.kept),
        "notes": list(result.notes),
        "seconds": round(result.seconds, 2),
        "stages": {name: round(seconds, 2) for name, seconds in result.stages.items()},
        "environment": dict(result.environment),
        "saved_to": str(saved) if saved else None,
    }


@app.command()
def analyze(
    conf: Conf = None,
    task: Task = None,
    model: Model = None,
    data: Data = None,
    tokenizer: Tokenizer = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write everything to this file, as JSON.")
    ] = None,
    all_ops: Annotated[
        bool, typer.Option("--all", help="Show every op, not only the most harmful ones.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show how much harm int8 does at every op, what would help, and what 'auto' would try first. No labels
    are needed.
    """
    from octune.analysis import analyze as run
    from octune.report.analysis import analysis_table
    from octune.report.progress import LiveProgress

    config = _named(load_config(conf) if conf else Config(), task, model, data, tokenizer)
    console = _console(as_json=as_json, verbose=verbose)
    listener = LiveProgress(console)
    with _interruptible("Nothing was kept."), closing(listener):
        analysis = run(config=config, listener=listener)
    text = json.dumps(analysis.to_json(), indent=1)
    if output is not None:
        output.write_text(text + "\n")
    if as_json:
        typer.echo(text)
    else:
        console.print(analysis_table(analysis, None if all_ops else 30))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save the int8 model.")] = Path(
        "octune_runs/demo/model"
    ),
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fetch a small BERT and real movie reviews, train a sentiment head, and tune it: the whole job in a few
    minutes.
    """
    from octune.demo.run import run_demo
    from octune.report.tables import result_table

    console = _console(as_json=as_json, verbose=verbose)
    with _interruptible("What was fetched is kept for the next time."):
        result = run_demo(console)
    saved = result.save(output, overwrite=True)
    if as_json:
        typer.echo(json.dumps(summary(result, saved), indent=1))
    else:
        console.print(result_table(result, str(saved)))
        console.print(f"[dim]load it with: octune.load({str(saved)!r})[/dim]")
    raise typer.Exit(0 if result.met else 1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can do: CPU features, threads, frameworks, and which int8 paths are fast here."""
    from octune.report.doctor import examine, show

    findings = examine()
    if as_json:
        typer.echo(json.dumps(findings, indent=1))
    else:
        show(findings, Console())


@app.command()
def config(
    conf: Annotated[Path | None, typer.Argument(help="A YAML file in any dialect.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the native dialect.")
    ] = False,
) -> None:
    """Print the effective configuration of a YAML file, or the schema."""
    if schema:
        typer.echo(Config.schema_json())
    elif conf is not None:
        typer.echo(load_config(conf).to_yaml(), nl=False)
    else:
        raise typer.BadParameter("give a YAML file, or --schema")


def _console(*, quiet: bool = False, as_json: bool = False, verbose: bool = False) -> Console:
    """Progress goes to standard error when standard output carries JSON."""
    console = Console(stderr=as_json, quiet=quiet)
    level = logging.DEBUG if verbose else logging.ERROR
    logging.getLogger("octune").handlers = [RichHandler(console=Console(stderr=True), show_path=False)]
    logging.getLogger("octune").setLevel(level)
    logging.getLogger("octune").propagate = False
    if not verbose:
        warnings.filterwarnings("ignore")
        for library in ("torch", "torch.utils._pytree", "torchao", "transformers"):
            logging.getLogger(library).setLevel(logging.ERROR)
        # Progress bars and advice of libraries would tear the live table.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return console


def main() -> None:
    """Run the command; an error of Octune's own is one message and exit code 2, never a traceback."""
    # Threads that wait for each other by spinning make a run crawl as soon as another process wants a core.
    # GNU OpenMP reads this when the framework is imported, so it must be set before.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        app()
    except OctuneError as error:
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), str(error)))
        sys.exit(2)
