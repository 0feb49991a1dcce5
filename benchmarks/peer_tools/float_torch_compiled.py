"""fp32 in PyTorch, compiled."""

from pathlib import Path
from typing import Any

import running
import torch
from job import Job, main


def quantize(job: Job, target: Path) -> Any:
    return torch.compile(job.torch_model(), dynamic=job.is_text)


if __name__ == "__main__":
    main(quantize, running.on_torch, "torch")
