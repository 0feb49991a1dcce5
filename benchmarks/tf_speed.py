"""Octune's int8 graphs in TensorFlow against fp32, bf16, Neural Compressor and LiteRT, side by side on this
machine.

    python benchmarks/tf_speed.py                                  # BERT-base and BERT-large
    python benchmarks/tf_speed.py --model bert-base --verbose      # one model, and what became of its ops
    python benchmarks/tf_speed.py --skip compressor                # without contenders of that name
    python benchmarks/tf_speed.py --quick                          # two layers, to test the script
    python benchmarks/tf_speed.py --markdown docs/benchmarks.md    # write its section of the page

Every contender is made first, one after the other; then all take turns, so that a slow moment of the machine
hits all of them.
"""

from __future__ import annotations

import sys
from functools import partial

from bench_command import main
from bench_report import Family, speed_reading
from bench_speed import measure

PACKAGES = ("tensorflow-cpu", "neural-compressor-tf", "ai-edge-litert")
FAMILY = Family("tf_speed", "TensorFlow: speed", speed_reading("TensorFlow fp32"), PACKAGES)
MODELS = ("bert-base", "bert-large")

if __name__ == "__main__":
    sys.exit(main(FAMILY, partial(measure, "bench_tf"), MODELS))
