"""Octune with its default settings, on an ONNX model."""

from pathlib import Path
from typing import Any

import running
from job import Job, main

import octune


def quantize(job: Job, target: Path) -> Any:
    own = job.own()
    result = octune.tune(
        job.onnx,
        calibration=list(job.calibration),
        evaluation=list(zip(job.evaluation, own["labels"], strict=True)),
        metric=own["metric"],
        criterion="1%",
    )
    job.evaluations = 1 + len(result.trials)
    result.save(target / "int8")
    return result.model


if __name__ == "__main__":
    main(quantize, running.session_run, "octune", "onnxruntime", "openvino")
