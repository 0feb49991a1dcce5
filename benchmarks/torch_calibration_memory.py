"""Calibration takes the same memory for 4 batches and for 64: only ranges and histograms are kept of a
batch.

    python benchmarks/torch_calibration_memory.py            # BERT-base, batches of 8 x 128 tokens
    python benchmarks/torch_calibration_memory.py --quick    # two layers, fewer batches

The exit code is 1 if memory grows.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bench_memory import Amounts, main

if TYPE_CHECKING:
    from octune.backends.base import Backend

AMOUNTS = Amounts((8, 128), (4, 16, 64), (2, 8, 16), tolerance=4.0)


def open_backend(quick: bool, threads: int) -> Backend:
    from bench_models import bert

    from octune.backends.terms import Settings
    from octune.backends.torch import TorchBackend

    return TorchBackend(bert(num_hidden_layers=2 if quick else 12), Settings(threads=threads))


def draw(shape: tuple[int, int], seed: int) -> Any:
    from bench_models import tensors
    from bench_subject import tokens

    return tensors(tokens(shape, seed))


if __name__ == "__main__":
    sys.exit(main("BERT-base", open_backend, draw, AMOUNTS))
