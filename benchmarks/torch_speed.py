"""Octune's int8 models against fp32 and torchao, side by side on this machine.

    python benchmarks/torch_speed.py                                  # all models, about half an hour on two cores
    python benchmarks/torch_speed.py --model resnet50 --verbose       # one model, with what the compiler fused
    python benchmarks/torch_speed.py --quick                          # cut-down models: does everything still work?
    python benchmarks/torch_speed.py --markdown docs/benchmarks.md    # the page that documents cite

Every contender is made first, one after the other; then all take turns, so that a slow moment of the machine hits all of them.
Each model runs in a process of its own: what one library does to the compiler must not help or harm the next model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench_machine import Neighbours, describe, quiet, reason
from bench_report import ModelRun, Run, machine_lines, table, warnings, write_markdown
from rich.console import Console

from octune.cost import interleaved

MODELS = ("bert-base", "minilm", "resnet50")
ROUNDS = {"small": 31, "large": 15}
QUICK_ROUNDS = 5
COMPARED_BATCHES, COMPARED_SEED = 4, 3


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 140)
    run = Run(describe(options.threads), options.quick)
    names = MODELS if options.model == "all" else (options.model,)
    if options.child:
        run.models = [measure(names[0], options.quick, options.threads)]
        Path(options.json).write_text(json.dumps(run.to_json()))
        return 0
    for line in warnings(run):
        console.print(f"warning: {line}", style="yellow", highlight=False)
    for name in names:
        console.print(f"{name}: making all contenders, then timing them in turns ...", style="dim", highlight=False)
        model = _in_child(name, options.quick, options.threads)
        if isinstance(model, str):
            console.print(f"{name}: {model}", style="bold red", highlight=False)
            continue
        run.models.append(model)
        _show(console, model, options.verbose)
    run.load_at_end = round(os.getloadavg()[0], 2)
    for line in machine_lines(run):
        console.print(line, style="dim", highlight=False)
    for line in warnings(run):
        console.print(f"warning: {line}", style="yellow", highlight=False)
    if options.json:
        Path(options.json).write_text(json.dumps(run.to_json(), indent=1))
    if options.markdown:
        write_markdown(Path(options.markdown), run)
    return 0 if len(run.models) == len(names) and not any(model.failed for model in run.models) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Octune's int8 models against fp32 and torchao, side by side on this machine.")
    parser.add_argument("--model", choices=(*MODELS, "all"), default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="cut-down models and few rounds")
    parser.add_argument("--verbose", action="store_true", help="show what was fused into int8 kernels")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables into a Markdown page")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_child(name: str, quick: bool, threads: int) -> ModelRun | str:
    """Measure one model in a fresh process; what went wrong as text."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, __file__, "--child", "--model", name, "--threads", str(threads), "--json", str(answer)]
        done = subprocess.run(command + ["--quick"] * quick, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False)
        if not answer.exists():
            return f"its process ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        return Run.from_json(json.loads(answer.read_text())).models[0]


def measure(name: str, quick_run: bool, threads: int) -> ModelRun:
    """Make every contender, compare what they answer, time them in turns."""
    quiet()
    import torch
    from bench_contenders import BASELINE, COLUMNS, CONTENDERS, INT8, Preparation
    from bench_models import SUBJECTS

    torch.set_num_threads(threads)
    subject = SUBJECTS[name](quick_run)
    preparation = Preparation(subject, threads)
    run = ModelRun(name, subject.title, BASELINE, list(COLUMNS))
    models: dict[str, Callable[..., Any]] = {}
    for contender, build in CONTENDERS.items():
        try:
            built = build(preparation)
            preparation.visit_shapes(built.model)
        except Exception as error:  # whatever it is, it is this contender's alone: the others go on
            run.failed[contender] = reason(error)
            continue
        models[contender] = built.model
        run.build_seconds[contender], run.remarks[contender] = round(built.seconds, 1), built.remarks
    models = {column: models[column] for column in COLUMNS if column in models}
    with torch.inference_mode():
        for contender in INT8:
            if contender in models and BASELINE in models:
                run.error[contender] = _error(models[BASELINE], models[contender], subject.batches(COMPARED_BATCHES, COMPARED_SEED))
        for shape, size in subject.shapes.items():
            inputs = subject.inputs(shape)
            rounds = QUICK_ROUNDS if quick_run else ROUNDS["small" if size[0] == 1 else "large"]
            with Neighbours() as others:
                times = interleaved({key: partial(model, **inputs) for key, model in models.items()}, warmup=3, iterations=rounds)
            run.median_ms[shape] = {key: latency.median_ms for key, latency in times.items()}
            run.p90_ms[shape] = {key: latency.p90_ms for key, latency in times.items()}
            run.rounds[shape], run.neighbours[shape] = rounds, round(others.cores, 2)
    return run


def _error(reference: Callable[..., Any], model: Callable[..., Any], batches: list[dict[str, Any]]) -> float:
    """How far the outputs are from fp32's, relative to their size."""
    import torch

    wanted = torch.cat([reference(**batch).logits for batch in batches])
    given = torch.cat([model(**batch).logits for batch in batches])
    return float((given - wanted).norm() / wanted.norm())


def _show(console: Console, model: ModelRun, verbose: bool) -> None:
    console.print(table(model))
    for contender, why in model.failed.items():
        console.print(f"{contender} failed: {why}", style="bold red", highlight=False)
    if verbose:
        for contender, remarks in model.remarks.items():
            for remark in remarks:
                console.print(f"  {contender}: {remark}", style="dim", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
