"""The command line that all comparisons share: every model in a process of its own, tables, files and pages.

    if __name__ == "__main__":
        sys.exit(main(FAMILY, partial(measure, "bench_torch"), ("bert-base", "minilm", "resnet50")))

``measure(name, options)`` runs in the child alone, and imports there what it needs: what one library does to
another, or to the next model, must not be measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_machine import describe, quiet
from bench_report import Family, ModelRun, Run, machine_lines, table, warnings, write_markdown
from rich.console import Console

__all__ = ["main"]

Measure = Callable[[str, argparse.Namespace], ModelRun]


def main(
    family: Family,
    measure: Measure,
    models: Sequence[str],
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> int:
    """All models, each measured in a process of its own, then tables and pages. ``more`` adds options."""
    options = _options(family, models, more)
    console = Console(width=None if sys.stdout.isatty() else 160)
    run = Run(family, describe(options.threads, family.packages), options.quick)
    names = models if options.model == "all" else (options.model,)
    if options.child:
        quiet()
        run.models = [measure(names[0], options)]
        Path(options.json).write_text(json.dumps(run.to_json()))
        return 0
    _warn(console, run)
    for name in names:
        console.print(f"{name}: making all contenders, then comparing them ...", style="dim", highlight=False)
        model = _in_child(name)
        if isinstance(model, str):
            console.print(f"{name}: {model}", style="bold red", highlight=False)
            continue
        run.models.append(model)
        _show(console, model, options.verbose)
    for line in machine_lines(run):
        console.print(line, style="dim", highlight=False)
    _warn(console, run)
    if options.json:
        Path(options.json).write_text(json.dumps(run.to_json(), indent=1))
    if options.markdown:
        write_markdown(Path(options.markdown), run)
    return 0 if len(run.models) == len(names) and not any(model.failed for model in run.models) else 1


def _options(
    family: Family, models: Sequence[str], more: Callable[[argparse.ArgumentParser], object] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{family.title}: Octune's int8 models against others, side by side on this machine."
    )
    parser.add_argument("--model", choices=(*models, "all"), default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="cut-down models and few rounds")
    parser.add_argument(
        "--skip",
        metavar="WORD",
        action="append",
        default=[],
        help="leave out contenders whose name has this in it",
    )
    parser.add_argument("--verbose", action="store_true", help="show what became of the model's ops")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables into a Markdown page")
    if more is not None:
        more(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _warn(console: Console, run: Run) -> None:
    for line in warnings(run):
        console.print(f"warning: {line}", style="yellow", highlight=False)


def _in_child(name: str) -> ModelRun | str:
    """Measure one model in a fresh process; what went wrong as text."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, *sys.argv, "--child", "--model", name, "--json", str(answer)]
        done = subprocess.run(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False
        )
        if not answer.exists():
            return (
                f"its process ended with {done.returncode}: "
                f"{(done.stderr.strip().splitlines() or ['no message'])[-1]}"
            )
        return Run.from_json(json.loads(answer.read_text())).models[0]


def _show(console: Console, model: ModelRun, verbose: bool) -> None:
    console.print(table(model))
    for line in model.remarks_on(verbose):
        console.print(line, style="bold red" if " failed: " in line else "dim", highlight=False)
