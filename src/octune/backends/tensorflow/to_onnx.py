"""TensorFlow models as ONNX, by tf2onnx, if the machine has the memory for it.

    proto = to_onnx(model, settings, batch)

The converter keeps many copies of a graph: BERT-base takes more than 16 GB. A model that would not fit is
refused before it is tried.
"""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from octune.backends.batches import Fitting
from octune.backends.onnx.converted import EXPORT_OPSET, check_answers, rename
from octune.backends.tensorflow.graph.sessions import new_session
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.tensorflow.model.handover import take
from octune.backends.tensorflow.model.pipeline import Pipeline
from octune.backends.terms import Settings
from octune.errors import UnsupportedError, summary

__all__ = ["to_onnx"]

COPIES = 60  # of all weights, when it needs the most memory
LEAVE_OUT = "or leave model.target out."


def to_onnx(model: Any, settings: Settings, batch: Any) -> ModelProto:
    """The model as ONNX; raises UnsupportedError if it cannot be converted, or if the result computes
    something else.
    """
    try:
        import tf2onnx
    except ImportError as error:
        raise UnsupportedError(
            "model.target is onnx, and the model is a TensorFlow model. tf2onnx, which converts it, is not "
            f"installed: pip install tf2onnx, {LEAVE_OUT}"
        ) from error
    taken = take(model, settings)
    frozen = taken.frozen
    if Pipeline.of(frozen) is not None:
        raise UnsupportedError(
            "model.target is onnx, and the graph reads its own file through an iterator, which ONNX does not "
            f"have. Give a graph that takes tensors, {LEAVE_OUT}"
        )
    _check_memory(sum(node.attr["value"].ByteSize() for node in frozen.graph_def.node if node.op == "Const"))
    values = Fitting(taken.slots(), strict=taken.handover.kind == "graph")(batch)[0].kwargs
    with new_session(as_graph(frozen.graph_def), settings.threads, optimized=False) as session:
        wanted = session.run(dict(frozen.outputs), dict(values))
    with _silent():
        try:
            made, _ = tf2onnx.convert.from_graph_def(
                frozen.graph_def,
                input_names=list(frozen.inputs.values()),
                output_names=list(frozen.outputs.values()),
                opset=EXPORT_OPSET,
            )
        except Exception as error:  # its handlers raise exceptions of any class
            raise UnsupportedError(
                f"tf2onnx cannot convert the model: {type(error).__name__}: {summary(error)}. "
                f"Convert it yourself and give the .onnx file, {LEAVE_OUT}"
            ) from error
    rename(made.graph, {tensor: name for name, tensor in (*frozen.inputs.items(), *frozen.outputs.items())})
    check_answers(made, {name: np.asarray(values[tensor]) for name, tensor in frozen.inputs.items()}, wanted)
    converted: ModelProto = made
    return converted


def _check_memory(weights: int) -> None:
    file = Path("/proc/meminfo")
    if not file.exists():
        return
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines())
    available = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024
    if available and COPIES * weights > available:
        raise UnsupportedError(
            f"model.target is onnx: tf2onnx needs about {COPIES * weights / 1e9:.0f} GB for "
            f"{weights / 1e9:.1f} GB of weights, and {available / 1e9:.0f} GB are free. Convert it on a "
            f"larger machine and give the .onnx file, {LEAVE_OUT}"
        )


@contextlib.contextmanager
def _silent() -> Any:
    """Silence the converter, which prints every step."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
