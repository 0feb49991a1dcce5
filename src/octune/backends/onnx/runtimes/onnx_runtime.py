"""ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from octune.backends.onnx.files import GRAPH
from octune.backends.onnx.graph import Array, Model
from octune.backends.onnx.runtimes.base import OnnxModel, Port, Runtime
from octune.errors import ModelError, summary

__all__ = ["OnnxRuntime", "session"]

# Its warnings say what it does with a graph, not what is wrong with it.
ort.set_default_logger_severity(3)


class OnnxRuntime(Runtime):
    """Where every plan is tried."""

    name = package = "onnxruntime"
    title = "ONNX Runtime"
    form = "onnx"
    own_ops = True
    signed_activations = False

    def build(self, graph: Model, threads: int | None) -> OnnxModel:
        return _OrtModel(graph, session(graph, threads))

    def files(self, folder: Path) -> list[Path]:
        return sorted(folder.glob(f"{GRAPH}*"))

    def read(self, file: Path, threads: int | None) -> OnnxModel:
        return _OrtModel(None, session(file, threads))


class _OrtModel(OnnxModel):
    runtime = OnnxRuntime.name

    def __init__(self, graph: Model | None, running: ort.InferenceSession) -> None:
        super().__init__(graph, _ports(running.get_inputs()), _ports(running.get_outputs()))
        self._session = running

    def _run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        return list(self._session.run(outputs, feed))

    def fresh(self) -> OnnxModel:
        return _OrtModel(self.graph, self._session)


def _ports(items: Any) -> list[Port]:
    return [Port(item.name, item.type, item.shape) for item in items]


def session(graph: Model | Path, threads: int | None) -> ort.InferenceSession:
    """An ONNX Runtime session on a graph whose tensors are shared with it, or on a file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or 0, 1
    # Threads that keep spinning after a call would take cores away from what is timed in turns with it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        if isinstance(graph, Path):
            return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        proto, large = graph.skeleton()
        values = [ort.OrtValue.ortvalue_from_numpy(_shareable(array)) for array in large.values()]
        options.add_external_initializers(list(large), values)
        made = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made.octune_keeps = values  # the session reads these arrays; they must live as long
        return made
    # It has an exception class for every status, with no common base except Exception.
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot load the model: {summary(error)}") from error


def _shareable(array: Array) -> Array:
    return np.require(array, requirements=["C", "A"])
