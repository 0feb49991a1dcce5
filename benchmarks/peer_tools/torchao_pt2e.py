"""torchao's documented way to static int8 on x86: export, calibrate, convert, compile with frozen weights."""

from pathlib import Path
from typing import Any

import running
import torch
import torch._inductor.config as inductor
from job import Arrays, Job, main
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86


def tensors(inputs: Arrays) -> tuple[Any, Any]:
    made = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return ((), made) if len(made) > 1 else (tuple(made.values()), {})


def quantize(job: Job, target: Path) -> Any:
    args, kwargs = tensors(job.calibration[0])
    sizes = {0: torch.export.Dim("batch", min=1, max=1024)}
    if job.is_text:
        sizes[1] = torch.export.Dim("tokens", min=2, max=512)
    shapes = dict.fromkeys(kwargs, sizes) or (sizes,)
    with torch.no_grad():
        model = torch.export.export(
            job.torch_model(), args, kwargs, dynamic_shapes=shapes, strict=False
        ).module()
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(model, quantizer)
        for inputs in job.calibration:
            args, kwargs = tensors(inputs)
            prepared(*args, **kwargs)
        converted = convert_pt2e(prepared)
    inductor.freezing = True
    return torch.compile(converted, dynamic=job.is_text)


if __name__ == "__main__":
    main(quantize, running.on_torch, "torch", "torchao")
