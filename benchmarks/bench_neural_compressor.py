"""Neural Compressor's static int8 of a frozen graph, with its default settings, in a process of its own.

    python bench_neural_compressor.py fp32.pb calibration.npz int8.pb 2

It is a command because it takes minutes, prints to stderr, writes into the working directory and changes
TensorFlow's global settings.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from neural_compressor.tensorflow import StaticQuantConfig, quantize_model
from neural_compressor.tensorflow.utils import BaseDataLoader, Model

BATCH = 8


class Rows:
    """The rows of an archive as a data set of ``(inputs, label)``; inputs in the order of the archive."""

    def __init__(self, archive: Any) -> None:
        self._columns = [archive[name] for name in archive.files]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> tuple[tuple[Any, ...], int]:
        return tuple(column[index] for column in self._columns), 0


def main(source: str, data: str, target: str, threads: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    archive = np.load(data)
    rows = Rows(archive)
    model = Model(source)
    model.input_tensor_names, model.output_tensor_names = list(archive.files), ["logits"]
    loader = BaseDataLoader(rows, batch_size=BATCH)
    made = quantize_model(model, StaticQuantConfig(), loader, calib_iteration=-(-len(rows) // BATCH))
    Path(target).write_bytes(made.graph_def.SerializeToString())


if __name__ == "__main__":
    main(*sys.argv[1:])
