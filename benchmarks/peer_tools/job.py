"""A job of benchmarks/peers.py as a tool sees it. Every tool runs in an environment of its own, so this needs
NumPy alone.

    def quantize(job, target):          # what a user of the tool writes; returns the model, or None
        ...

    if __name__ == "__main__":
        main(quantize, running.on_onnxruntime, "onnxruntime")       # python tool.py JOB TARGET

A job is a folder: the fp32 model in the forms that frameworks read, and the arrays of all batches. Once the
model is made, the process stays, answers the evaluation data and is timed, as it is asked to on its standard
input. Scores come from whoever asks: all tools are scored by the same code.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Arrays", "Batches", "Job", "Run", "main", "save_arrays"]

Arrays = dict[str, Any]
Run = Callable[[Arrays], Mapping[str, Any]]


class Batches:
    """Batches of inputs, read from their file when they are asked for, so that a tool's memory is its own."""

    def __init__(self, file: Path) -> None:
        self._arrays = np.load(file)
        self._names: dict[int, list[str]] = {}
        for key in self._arrays.files:
            number, _, name = key.partition("/")
            self._names.setdefault(int(number), []).append(name)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Arrays:
        if index not in self._names:
            raise IndexError(index)
        return {name: self._arrays[f"{index}/{name}"] for name in self._names[index]}

    def __iter__(self) -> Iterator[Arrays]:
        return (self[index] for index in range(len(self)))


def save_arrays(file: Path, batches: Iterator[Mapping[str, Any]]) -> None:
    """Batches as :class:`Batches` reads them; the file appears complete or not at all."""
    arrays = {
        f"{number}/{name}": array for number, batch in enumerate(batches) for name, array in batch.items()
    }
    half = file.with_suffix(".half.npz")
    np.savez(half, **arrays)
    half.rename(file)


class Job:
    """The fp32 model, batches to calibrate on, and batches to score on."""

    def __init__(self, folder: Path, judge: _Judge) -> None:
        self.folder = folder
        self.onnx = folder / "fp32.onnx"
        self.calibration = Batches(folder / "calibration.npz")
        self.evaluation = Batches(folder / "evaluation.npz")
        self.is_text = "input_ids" in self.calibration[0]
        self.evaluations = 0
        self._judge = judge

    def score(self, run: Run) -> float:
        """The metric over all evaluation data, for a function from inputs to outputs by name."""
        self.evaluations += 1
        self._judge.answer(run, self.evaluation)
        self._judge.say(event="score")
        value: float = self._judge.hear()["value"]
        return value

    def torch_model(self) -> Any:
        """The fp32 model in PyTorch, where that and the model's own code are installed."""
        return self._loaded("model.pt")

    def own(self) -> dict[str, Any]:
        """The metric and the labels, for tools that share the judge's environment."""
        found: dict[str, Any] = self._loaded("own.pt")
        return found

    def _loaded(self, name: str) -> Any:
        import torch

        sys.path.append(str(Path(__file__).parents[1] / "search"))  # of the stress cases
        return torch.load(self.folder / name, weights_only=False)


class _Judge:
    """Whoever started this process. What tools print must not come between."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._voice = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **what: Any) -> None:
        print(json.dumps(what), file=self._voice, flush=True)

    def hear(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        asked: dict[str, Any] = json.loads(line)
        return asked

    def answer(self, run: Run, batches: Batches) -> None:
        save_arrays(self._target / "answers.npz", (run(inputs) for inputs in batches))


def main(
    quantize: Callable[[Job, Path], Any],
    runner: Callable[[Any], Run],
    *packages: str,
    reference: bool = False,
) -> None:
    """Run a tool on the job that the command line names, then serve what it made."""
    target = Path(sys.argv[2])
    judge = _Judge(target)
    job = Job(Path(sys.argv[1]), judge)
    begun = time.perf_counter()
    error, made = "", None
    try:
        made = quantize(job, target)
    except Exception as caught:
        error = f"{type(caught).__name__}: {' '.join(str(caught).split())[:200]}"
    took = time.perf_counter() - begun
    # Not getrusage: its figure begins with that of the process which has started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    judge.say(
        event="made",
        seconds=took,
        evaluations=job.evaluations,
        peak_mb=kilobytes / 1024,
        file=str(made) if isinstance(made, Path) else None,
        model=made is not None,
        error=error,
        versions={name: importlib.metadata.version(name) for name in packages},
    )
    if made is not None:
        _serve(judge, job, runner(made))


def _serve(judge: _Judge, job: Job, run: Run) -> None:
    inputs = Batches(job.folder / "timing.npz")[0]
    while True:
        asked = judge.hear()
        if asked["ask"] == "answers":
            judge.answer(run, job.evaluation)
            judge.say(event="answered")
        else:
            times = []
            for _ in range(asked["calls"]):
                begun = time.perf_counter()
                run(inputs)
                times.append(1000 * (time.perf_counter() - begun))
            judge.say(event="timed", ms=times)
