"""Neural Compressor 3's static int8 for PyTorch, which ends in the compiler as torchao's does."""

from pathlib import Path
from typing import Any

import running
import torch
import torch._inductor.config as inductor
from job import Arrays, Job, main
from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import StaticQuantConfig, convert, prepare


def tensors(inputs: Arrays) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(array) for array in inputs.values())


def quantize(job: Job, target: Path) -> Any:
    sizes = {0: torch.export.Dim("batch", min=1, max=1024)}
    if job.is_text:
        sizes[1] = torch.export.Dim("tokens", min=2, max=512)
    example = tensors(job.calibration[0])
    exported = export(job.torch_model(), example_inputs=example, dynamic_shapes=tuple(sizes for _ in example))
    prepared = prepare(exported, StaticQuantConfig())
    for inputs in job.calibration:
        prepared(*tensors(inputs))
    converted = convert(prepared)
    inductor.freezing = True
    return torch.compile(converted, dynamic=job.is_text)


if __name__ == "__main__":
    main(quantize, running.on_torch, "torch", "neural-compressor-pt")
