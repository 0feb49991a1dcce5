"""The last accuracy-driven tuner of Neural Compressor (2.6), with its default settings."""

from pathlib import Path
from typing import Any

import running
from job import Job, main
from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.config import AccuracyCriterion, TuningCriterion

TRIALS = 40  # its default is 100


class Loader:
    """What it takes for a data loader: batches with labels, and their size."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.batch_size = batches, len(next(iter(batches[0].values())))

    def __iter__(self) -> Any:
        for inputs in self.batches:
            yield (inputs if len(inputs) > 1 else next(iter(inputs.values()))), 0


def quantize(job: Job, target: Path) -> Path | None:
    config = PostTrainingQuantConfig(
        approach="static",
        accuracy_criterion=AccuracyCriterion(criterion="relative", tolerable_loss=0.01),
        tuning_criterion=TuningCriterion(max_trials=TRIALS),
    )
    model = quantization.fit(
        str(job.onnx),
        config,
        calib_dataloader=Loader(job.calibration),
        eval_func=lambda model: job.score(running.on_onnxruntime(model.SerializeToString())),
    )
    if model is None:
        return None
    model.save(str(target / "int8.onnx"))
    return target / "int8.onnx"


if __name__ == "__main__":
    main(quantize, running.on_onnxruntime, "neural-compressor", "onnxruntime")
