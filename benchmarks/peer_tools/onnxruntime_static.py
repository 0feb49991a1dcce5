"""ONNX Runtime's static quantization as its documentation advises for CPUs with VNNI: the graph preprocessed,
Q/DQ, unsigned activations, signed weights per channel.
"""

from pathlib import Path
from typing import Any

import running
from job import Job, main
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Any) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Any:
        return next(self.batches, None)


def quantize(job: Job, target: Path) -> Path:
    ready, made = target / "ready.onnx", target / "int8.onnx"
    quant_pre_process(job.onnx, ready, skip_symbolic_shape=True)
    quantize_static(
        ready,
        made,
        Reader(job.calibration),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return made


if __name__ == "__main__":
    main(quantize, running.on_onnxruntime, "onnxruntime")
