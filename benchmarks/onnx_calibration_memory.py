"""Calibrating BERT-base on 512 samples of 384 tokens takes less than 2 GB on top of the model, and no more
than calibrating on 32 samples.

    python benchmarks/onnx_calibration_memory.py            # 32, 128 and 512 samples
    python benchmarks/onnx_calibration_memory.py --quick    # two layers, fewer samples

Activations are seen while they stream through an augmented graph; only ranges and histograms are kept. The
exit code is 1 if memory grows, or exceeds the limit.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_memory import Amounts, main
from bench_subject import tokens

if TYPE_CHECKING:
    from octune.backends.base import Backend

AMOUNTS = Amounts((8, 384), (4, 16, 64), (2, 4, 8), tolerance=32.0, limit=2048.0)


def open_backend(quick: bool, threads: int) -> Backend:
    """From a file that was written by another process: exporting takes memory of its own."""
    from octune.backends.onnx import OnnxBackend
    from octune.backends.terms import Settings

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        script = f"import onnx_calibration_memory as m; m.export({2 if quick else 12}, {str(file)!r})"
        subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, check=True)
        return OnnxBackend(file, Settings(threads=threads))


def export(layers: int, file: str) -> None:
    """Write a BERT with this many layers to a file."""
    import onnx
    from bench_machine import quiet
    from bench_models import bert, tensors

    from octune.backends.torch.to_onnx import to_onnx

    quiet()
    onnx.save(to_onnx(bert(num_hidden_layers=layers), tensors(tokens(AMOUNTS.shape, 0))), file)


def draw(shape: tuple[int, int], seed: int) -> Any:
    return tokens(shape, seed)


if __name__ == "__main__":
    sys.exit(main("BERT-base as ONNX", open_backend, draw, AMOUNTS))
