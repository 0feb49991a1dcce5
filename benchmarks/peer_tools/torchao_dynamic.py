"""torchao's dynamic int8 for linears, in one call, compiled as its documentation asks for."""

from pathlib import Path
from typing import Any

import running
import torch
from job import Job, main
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_


def quantize(job: Job, target: Path) -> Any:
    model = job.torch_model()
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return torch.compile(model, dynamic=job.is_text)


if __name__ == "__main__":
    main(quantize, running.on_torch, "torch", "torchao")
