"""``octune bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from octune.cli.app import app
from octune.cli.console import interruptible, open_console
from octune.cli.options import AsJson, Quiet, Trust, Verbose
from octune.errors import ConfigError


@app.command()
def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Models: a folder that Octune saved, .onnx, .pb, .tflite, .keras or .pt2 file, SavedModel "
            "or Hugging Face folder, package.module:factory. The others are compared with the first. A .yaml "
            "file among them says how to time, and its model comes first.",
            show_default=False,
        ),
    ],
    batch: Annotated[
        str | None, typer.Option(help="Samples in a call: one number, or several as 1,8,32. Default: 1.")
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            help="Tokens in a sample: one number, or several as 128,384. Default: the model's own, or 128."
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(help="Processes that run at once, each pinned to its own cores. Default: 1."),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(help="Cores of each instance. Default: all there are, shared out.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each model is timed at each size.")] = 3.0,
    warmup: Annotated[
        int | None, typer.Option(help="Calls before timing starts; fewer for a slow model. Default: 5.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Timed calls of each instance, instead of --seconds.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="An .npz file with an array for every input. Default: made from the model's signature."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw a picture: a .png or .svg file.")] = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Time finished models side by side and in turns: latency, throughput and memory, and how many times
    faster than the first the others are.
    """
    from octune.benchmark import bench as run
    from octune.report.bench import bench_table, check_plot
    from octune.report.bench import plot as draw

    if plot is not None:
        check_plot(plot)
    files = [source for source in models if Path(source).suffix in (".yaml", ".yml")]
    if len(files) > 1:
        raise ConfigError(f"One .yaml file says how to time. Got {', '.join(files)}.")
    open_console(quiet=quiet, as_json=as_json, verbose=verbose)
    progress = Console(stderr=True, quiet=quiet)
    with interruptible("Nothing was kept."), progress.status("starting") as status:

        def say(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                progress.print(text, highlight=False, soft_wrap=True)

        outcome = run(
            [source for source in models if source not in files],
            config=files[0] if files else None,
            batch=_numbers("--batch", batch),
            sequence=_numbers("--sequence", sequence),
            instances=instances,
            cores=cores,
            seconds=seconds,
            warmup=warmup,
            iterations=iterations,
            data=data,
            trust=trust,
            say=say,
        )
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), indent=1))
    else:
        Console().print(bench_table(outcome))
    if plot is not None:
        draw(outcome, plot)


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """``1,8,32`` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{option} must be a whole number, or several with commas: 1,8,32. Got {text!r} instead."
        ) from None
