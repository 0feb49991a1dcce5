"""Octune's int8 models against fp32 and torchao, side by side on this machine.

    python benchmarks/torch_speed.py                                  # all models: half an hour on two cores
    python benchmarks/torch_speed.py --model resnet50 --verbose       # one model, and what became of its ops
    python benchmarks/torch_speed.py --quick                          # cut-down models, to test the script
    python benchmarks/torch_speed.py --markdown docs/benchmarks.md    # write its section of the page

Every contender is made first, one after the other; then all take turns, so that a slow moment of the machine
hits all of them. Each model runs in a process of its own: what one library does to the compiler must not help
or harm the next model.
"""

from __future__ import annotations

import sys
from functools import partial

from bench_command import main
from bench_report import Family, speed_reading
from bench_speed import measure

FAMILY = Family(
    "torch_speed", "PyTorch: speed", speed_reading("torch eager fp32"), ("torch", "torchao", "transformers")
)
MODELS = ("bert-base", "minilm", "resnet50")

if __name__ == "__main__":
    sys.exit(main(FAMILY, partial(measure, "bench_torch"), MODELS))
