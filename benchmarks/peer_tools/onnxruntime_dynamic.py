"""ONNX Runtime's dynamic quantization, per channel."""

from pathlib import Path

import running
from job import Job, main
from onnxruntime.quantization import QuantType, quantize_dynamic


def quantize(job: Job, target: Path) -> Path:
    made = target / "int8.onnx"
    quantize_dynamic(job.onnx, made, weight_type=QuantType.QInt8, per_channel=True)
    return made


if __name__ == "__main__":
    main(quantize, running.on_onnxruntime, "onnxruntime")
