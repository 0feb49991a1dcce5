"""fp32 in PyTorch."""

from pathlib import Path
from typing import Any

import running
from job import Job, main


def quantize(job: Job, target: Path) -> Any:
    return job.torch_model()


if __name__ == "__main__":
    main(quantize, running.on_torch, "torch")
