"""Tunes the stress cases with Neural Compressor 2.6, in an environment of its own: run.py starts it with
another Python.

    python -m venv peer && peer/bin/pip install neural-compressor==2.6 scikit-learn torch
    python benchmarks/search/run.py --peer-python peer/bin/python

Prints one JSON object: what it needed, and what it got.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES

MATMULS = ("Conv2d", "ConvReLU2d", "Linear", "LinearReLU")


def main(name: str, weights: str, most: int) -> None:
    """Default settings of the tool: static int8, 1 % relative loss, ``most`` trials. ``weights`` are those
    that everybody else tunes.
    """
    torch.set_num_threads(1)
    import neural_compressor
    from neural_compressor import PostTrainingQuantConfig, quantization
    from neural_compressor.config import AccuracyCriterion, TuningCriterion

    case, evaluations = CASES[name](0), 0
    case.model.load_state_dict(torch.load(weights, weights_only=True))

    def evaluate(model: torch.nn.Module) -> float:
        nonlocal evaluations
        evaluations += 1
        return case.accuracy(model)

    config = PostTrainingQuantConfig(
        approach="static",
        accuracy_criterion=AccuracyCriterion(criterion="relative", tolerable_loss=0.01),
        tuning_criterion=TuningCriterion(max_trials=most),
    )
    begun = time.perf_counter()
    model = quantization.fit(
        case.model, config, calib_dataloader=_Loader(case.calibration), eval_func=evaluate
    )
    seconds = time.perf_counter() - begun
    answer = {
        "tool": f"Neural Compressor {neural_compressor.__version__}, torch {torch.__version__}",
        "evaluations": evaluations,
        "seconds": seconds,
        "met": model is not None,
        "accuracy": None if model is None else case.accuracy(model),
        "int8": None
        if model is None
        else sum(
            "quantized" in type(m).__module__ and type(m).__name__ in MATMULS for m in model.model.modules()
        ),
    }
    print(json.dumps(answer))


class _Loader:
    """What it takes for a data loader: batches, and their size."""

    def __init__(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.batches, self.batch_size = batches, len(batches[0][1])

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
