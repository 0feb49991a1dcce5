"""NNCF's post-training quantization with its default settings, and the model type that it asks for."""

from pathlib import Path

import nncf
import openvino as ov
import running
from job import Job, main


def quantize(job: Job, target: Path) -> Path:
    made = nncf.quantize(
        ov.Core().read_model(job.onnx),
        nncf.Dataset(job.calibration),
        subset_size=len(job.calibration),
        model_type=nncf.ModelType.TRANSFORMER if job.is_text else None,
    )
    ov.save_model(made, target / "int8.xml", compress_to_fp16=False)
    return target / "int8.xml"


if __name__ == "__main__":
    main(quantize, running.on_openvino, "nncf", "openvino")
