"""TensorFlow models as ONNX, by tf2onnx, where the machine has the memory for it.

    proto = from_tensorflow(model, settings, batch)

The converter keeps many copies of a graph: BERT-base takes more than 16 GB. A model that would not fit is
refused before it is tried.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto

from octune.backends.base import Settings
from octune.backends.batches import Fitting
from octune.backends.onnx.graph import subgraphs
from octune.errors import UnsupportedError, summary

__all__ = ["from_tensorflow"]

OPSET = 17
COPIES = 60  # of all weights, at the worst moment
LEAVE_OUT = "or leave model.target out."


def from_tensorflow(
    model: Any, settings: Settings, batch: Any
) -> tuple[ModelProto, dict[str, Any], dict[str, Any]]:
    """The model as ONNX, with the inputs of a batch and what TensorFlow answers to them, by name."""
    try:
        import tf2onnx
    except ImportError as error:
        raise UnsupportedError(
            "model.target is onnx, and the model is TensorFlow's: tf2onnx converts it, and is not installed. "
            f"pip install tf2onnx, {LEAVE_OUT}"
        ) from error
    from octune.backends.tensorflow.graph.sessions import new_session
    from octune.backends.tensorflow.model.freeze import as_graph
    from octune.backends.tensorflow.model.handover import take
    from octune.backends.tensorflow.model.pipeline import Pipeline

    taken = take(model, settings)
    frozen = taken.frozen
    if Pipeline.of(frozen) is not None:
        raise UnsupportedError(
            "model.target is onnx, and the graph reads its own file through an iterator, which ONNX does not "
            "have. "
            f"Give a graph that takes tensors, {LEAVE_OUT}"
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
                opset=OPSET,
            )
        except Exception as error:  # it raises whatever its handlers meet
            raise UnsupportedError(
                f"tf2onnx cannot convert the model: {type(error).__name__}: {summary(error)}. "
                f"Convert it yourself and give the .onnx file, {LEAVE_OUT}"
            ) from error
    _rename(made.graph, {tensor: name for name, tensor in (*frozen.inputs.items(), *frozen.outputs.items())})
    return made, {name: np.asarray(values[tensor]) for name, tensor in frozen.inputs.items()}, wanted


def _check_memory(weights: int) -> None:
    file = Path("/proc/meminfo")
    if not file.exists():
        return
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines())
    available = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024
    if available and COPIES * weights > available:
        raise UnsupportedError(
            f"model.target is onnx: tf2onnx needs about {COPIES * weights / 1e9:.0f} GB for "
            f"{weights / 1e9:.1f} GB of weights, "
            f"and {available / 1e9:.0f} GB are free. Convert it on a larger machine and give the .onnx file, "
            f"{LEAVE_OUT}"
        )


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Tensors by the names that callers use, in the graph and in the graphs inside it."""
    for item in (*graph.input, *graph.output):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in subgraphs(node):
            _rename(inner, names)


@contextlib.contextmanager
def _silent() -> Any:
    """The converter reports every step."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
