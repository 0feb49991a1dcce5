"""fp32 on OpenVINO."""

from pathlib import Path

import running
from job import Job, main


def quantize(job: Job, target: Path) -> Path:
    return job.onnx


if __name__ == "__main__":
    main(quantize, running.on_openvino, "openvino")
