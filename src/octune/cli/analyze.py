"""``octune analyze``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from octune.cli.app import app
from octune.cli.console import interruptible, open_console
from octune.cli.options import AsJson, CalibrationData, Conf, Data, Model, Naming, Task, Tokenizer, Verbose
from octune.errors import ConfigError
from octune.folders import check_writable, write_whole


@app.command()
def analyze(
    conf: Conf = None,
    task: Task = None,
    model: Model = None,
    data: Data = None,
    tokenizer: Tokenizer = None,
    calibration: CalibrationData = None,
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

    if output is not None:
        check_writable(output.parent, "The folder of --output,", ConfigError)
        if output.is_dir():
            raise ConfigError(f"--output {output} is a folder. Expected the name of a file to write.")
    config = Naming(task, model, data, tokenizer, calibration).applied(conf)
    console = open_console(as_json=as_json, verbose=verbose)
    listener = LiveProgress(console)
    with interruptible("Nothing was kept."), closing(listener):
        analysis = run(config=config, listener=listener)
    text = json.dumps(analysis.to_json(), indent=1)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, (text + "\n").encode())
    if as_json:
        typer.echo(text)
    else:
        console.print(analysis_table(analysis, None if all_ops else 30, console.width))
