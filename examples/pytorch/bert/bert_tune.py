"""What run_glue_tune.py and run_squad_tune.py share: the three modes, tune, accuracy and benchmark."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

import octune
from octune.tasks import TaskData, load_task

HERE = Path(__file__).resolve().parent
WARM_UP = 5


def arguments(description: str) -> argparse.ArgumentParser:
    """The options of both scripts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model_name_or_path",
        required=True,
        help="the fine-tuned model: a Hugging Face folder with its tokenizer",
    )
    parser.add_argument(
        "--data_dir",
        type=Path,
        required=True,
        help="the folder of the task's official files, or the one that holds it",
    )
    parser.add_argument(
        "--output_dir", type=Path, default=Path("result"), help="where to save the tuned model"
    )
    parser.add_argument("--mode", choices=("tune", "accuracy", "benchmark"), default="tune")
    parser.add_argument(
        "--input_model", type=Path, help="a tuned folder to score or time instead of the fp32 model"
    )
    parser.add_argument("--config", type=Path, default=HERE / "conf.yaml")
    parser.add_argument(
        "--max_seq_length", type=int, help="longest input in tokens; the task's usual length if left out"
    )
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument(
        "--iteration", type=int, default=-1, help="batches to time in benchmark mode; -1: all"
    )
    return parser


def load_model(args: argparse.Namespace, task: str) -> Any:
    """The fp32 model, or one that was tuned before, which needs only its folder."""
    if args.input_model is not None:
        return octune.load(args.input_model)
    kind = AutoModelForQuestionAnswering if task.startswith("squad") else AutoModelForSequenceClassification
    return kind.from_pretrained(args.model_name_or_path, dtype=torch.float32).eval()


def outputs(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        found = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return {name: value.numpy() for name, value in found.items()}


def score(model: Any, data: TaskData) -> octune.Score:
    """The task's own metric over the development set."""
    predictions: list[Any] = []
    labels: list[Any] = []
    for inputs, label in data.evaluation:
        predictions += data.metric.predictions(outputs(model, inputs))
        labels += label.tolist()
    return data.metric.score(predictions, labels)


def benchmark(model: Any, data: TaskData, batch_size: int, iteration: int) -> None:
    """Seconds per sample over whole batches of the development set, after a warm-up."""
    batches = [inputs for inputs, label in data.evaluation if len(label) == batch_size]
    batches = (
        batches
        if iteration < 0
        else [batches[number % len(batches)] for number in range(iteration)]
        if batches
        else []
    )
    if len(batches) <= WARM_UP:
        raise SystemExit(
            f"There are {len(batches)} batches. Expected more than the {WARM_UP} of the warm-up: raise "
            "--iteration."
        )
    seconds = []
    for inputs in batches:
        begun = time.perf_counter()
        outputs(model, inputs)
        seconds.append(time.perf_counter() - begun)
    each = np.array(seconds[WARM_UP:]) / batch_size
    print(
        f"Latency is {np.mean(each):.6f} s per sample (median {np.median(each):.6f}, 90 % within "
        f"{np.quantile(each, 0.9):.6f})"
    )
    print(f"Batch size is {batch_size}, batches timed after a warm-up of {WARM_UP}: {len(each)}")


def run(task: str, args: argparse.Namespace) -> None:
    model = load_model(args, task)
    data = load_task(
        task,
        args.data_dir,
        tokenizer=args.model_name_or_path,
        max_length=args.max_seq_length,
        evaluation_batch_size=args.batch_size,
        label2id=getattr(getattr(model, "config", None), "label2id", None),
    )
    print(data.description)
    if args.mode == "benchmark":
        benchmark(model, data, args.batch_size, args.iteration)
    elif args.mode == "accuracy":
        print(f"{data.metric.name} is {score(model, data)}")
    else:
        # The one call. The model is as Hugging Face built it: no stubs, no fusion. Calibration rows are
        # training rows.
        result = octune.tune(
            model,
            calibration=data.calibration,
            evaluation=data.evaluation,
            metric=data.metric,
            config=args.config,
        )
        print(result)
        print(f"saved to {result.save(args.output_dir, overwrite=True)}")
