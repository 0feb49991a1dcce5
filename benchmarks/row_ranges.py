"""One dynamic range for each row (token) against one for each tensor: what it saves, and what it costs.

    python benchmarks/row_ranges.py --data DATA --models MODELS      # as for onnx_accuracy.py

MiniLM on SST-2 in ONNX Runtime, all linear ops in one scheme: harm of every op alone, accuracy and distance
from fp32's logits on the development set in its usual batches, and the time of one sentence and of eight, in
turns. TensorFlow computes with the same numbers; what its kernels take says
`ops.py --framework tensorflow --kind matmul`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_machine import describe, quiet
from rich.console import Console
from rich.table import Table

SCHEMES = ("static", "dynamic", "token")
LENGTH = 128


def main() -> int:
    options = _options()
    quiet()
    from bench_octune import observe
    from bench_onnx import export
    from onnx_accuracy import sentences

    from octune.backends import Settings
    from octune.backends.onnx import OnnxBackend
    from octune.cost import interleaved
    from octune.plan import Plan, Scheme

    task = sentences("sst2", options)
    batches = [(dict(inputs), labels) for inputs, labels in task.evaluation]
    exported = export(task.model, task.calibration, True, options.threads)
    backend = OnnxBackend(exported.file, Settings(threads=options.threads))
    ranges = observe(backend, task.calibration)
    schemes = {mode: Scheme.int8(mode) for mode in SCHEMES}
    linear = [op for op in backend.ops() if schemes["dynamic"] in op.schemes]
    candidates = {op.name: [schemes[mode] for mode in SCHEMES] for op in linear}
    harm = backend.harm(candidates, ranges, [backend.split(batch)[0] for batch in task.calibration[:2]])
    models = {"fp32": backend.fp32_model()} | {
        mode: backend.apply(Plan({op.name: scheme for op in linear}), ranges)
        for mode, scheme in schemes.items()
    }
    logits = {name: _logits(model, batches) for name, model in models.items()}
    exact = logits["fp32"]
    speed = {
        rows: interleaved(
            {name: partial(model.run, None, _sentence(batches, rows)) for name, model in models.items()},
            seconds=options.seconds,
        )
        for rows in (1, 8)
    }
    truth = np.concatenate([np.asarray(labels) for _, labels in batches])
    made = Table(
        title=f"MiniLM on SST-2, {len(truth)} sentences, {len(linear)} linear ops", title_justify="left"
    )
    for heading in (
        "",
        "median harm",
        "sum of harm",
        "error of logits",
        "flips",
        "accuracy",
        "batch 1",
        "batch 8",
    ):
        made.add_column(heading, justify="right" if heading else "left")
    for name in models:
        harms = [harm[op.name, schemes[name]] for op in linear] if name in schemes else [0.0]
        error = np.linalg.norm(logits[name] - exact) / np.linalg.norm(exact)
        flips = int((logits[name].argmax(1) != exact.argmax(1)).sum())
        accuracy = float((logits[name].argmax(1) == truth).mean())
        gains = [times["fp32"].median_ms / times[name].median_ms for times in speed.values()]
        made.add_row(
            *(name, f"{np.median(harms):.2e}", f"{sum(harms):.2e}", f"{error:.4f}", str(flips)),
            *(f"{accuracy:.4f}", *(f"{gain:.2f}x" for gain in gains)),
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(made)
    where = describe(options.threads, ("onnxruntime",))
    console.print(
        f"{where['cpu']}, {options.threads} threads, ONNX Runtime {where['versions']['onnxruntime']}",
        style="dim",
        highlight=False,
    )
    return 0


def _logits(model: Any, batches: list[tuple[dict[str, Any], Any]]) -> Any:
    return np.concatenate([model.run(None, _taken(model, inputs))[0] for inputs, _ in batches])


def _taken(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return {port.name: np.asarray(inputs[port.name]) for port in model.get_inputs()}


def _sentence(batches: list[tuple[dict[str, Any], Any]], rows: int) -> dict[str, Any]:
    """Real sentences, repeated up to a length."""
    inputs = {name: np.asarray(array)[:rows] for name, array in batches[0][0].items()}
    return {name: np.resize(array, (rows, LENGTH)) for name, array in inputs.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Dynamic ranges by row against dynamic ranges by tensor.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each batch size is timed (10)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
