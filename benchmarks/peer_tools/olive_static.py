"""Olive's static quantization pass with its default settings."""

from pathlib import Path
from typing import Any

import olive
import running
import torch
from job import Job, main
from olive.data.registry import Registry


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, batches: Any) -> None:
        self.rows = [
            {name: array[row] for name, array in batch.items()}
            for batch in batches
            for row in range(len(next(iter(batch.values()))))
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], 0


def quantize(job: Job, target: Path) -> Path:
    @Registry.register_dataset("calibration_rows")
    def rows(**options: Any) -> Rows:
        return Rows(job.calibration)

    olive.run(
        {
            "input_model": {"type": "ONNXModel", "model_path": str(job.onnx)},
            "data_configs": [
                {
                    "name": "calibration",
                    "load_dataset_config": {"type": "calibration_rows"},
                    "dataloader_config": {"batch_size": 1},
                }
            ],
            "passes": {"static": {"type": "OnnxStaticQuantization", "data_config": "calibration"}},
            "output_dir": str(target / "olive"),
        }
    )
    return next((target / "olive").rglob("*.onnx"))


if __name__ == "__main__":
    main(quantize, running.on_onnxruntime, "olive-ai", "onnxruntime")
