"""NNCF's quantization with accuracy control: ops go back to float, the most harmful first, until the score is
kept.
"""

from pathlib import Path
from typing import Any

import nncf
import openvino as ov
import running
from job import Job, main


def quantize(job: Job, target: Path) -> Path:
    def score(model: Any, _: Any) -> float:
        return job.score(running.openvino_run(model))

    made = nncf.quantize_with_accuracy_control(
        ov.Core().read_model(job.onnx),
        nncf.Dataset(job.calibration),
        nncf.Dataset(job.evaluation),
        score,
        max_drop=0.01,
        drop_type=nncf.DropType.RELATIVE,
        subset_size=len(job.calibration),
        model_type=nncf.ModelType.TRANSFORMER if job.is_text else None,
    )
    ov.save_model(made, target / "int8.xml", compress_to_fp16=False)
    return target / "int8.xml"


if __name__ == "__main__":
    main(quantize, running.on_openvino, "nncf", "openvino")
