"""Octune's int8 models on ONNX Runtime and OpenVINO against fp32 and the runtimes' own int8, side by
side.

    python benchmarks/onnx_speed.py                                  # all models
    python benchmarks/onnx_speed.py --model minilm --verbose         # one model, and what became of its ops
    python benchmarks/onnx_speed.py --quick                          # cut-down models, to test the script
    python benchmarks/onnx_speed.py --markdown docs/benchmarks.md    # write its section of the page

Every contender is made first, one after the other; then all take turns, so that a slow moment of the machine
hits all of them. Each model runs in a process of its own.
"""

from __future__ import annotations

import sys
from functools import partial

from bench_command import main
from bench_report import Family, speed_reading
from bench_speed import measure

FAMILY = Family(
    "onnx_speed",
    "ONNX: speed",
    speed_reading("ONNX Runtime fp32"),
    ("onnx", "onnxruntime", "openvino", "nncf", "torch"),
)
MODELS = ("bert-base", "minilm", "resnet50", "efficientnet-lite0")

if __name__ == "__main__":
    sys.exit(main(FAMILY, partial(measure, "bench_onnx"), MODELS))
