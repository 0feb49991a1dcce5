"""Octune with its default settings, on a PyTorch model."""

from pathlib import Path
from typing import Any

import running
import torch
from job import Arrays, Job, main

import octune


def tensors(inputs: Arrays) -> Any:
    made = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return made if len(made) > 1 else next(iter(made.values()))


def quantize(job: Job, target: Path) -> Any:
    own = job.own()
    result = octune.tune(
        job.torch_model(),
        calibration=[tensors(inputs) for inputs in job.calibration],
        evaluation=[
            (tensors(inputs), label) for inputs, label in zip(job.evaluation, own["labels"], strict=True)
        ],
        metric=own["metric"],
        criterion="1%",
    )
    job.evaluations = 1 + len(result.trials)
    result.save(target / "int8")
    return result.model


if __name__ == "__main__":
    main(quantize, running.on_torch, "octune", "torch")
