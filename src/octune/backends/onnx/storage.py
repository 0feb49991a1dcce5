"""Saving a model as plain files, and loading it where the fp32 model was never seen.

``model.onnx`` is the Q/DQ graph for any runtime; beyond 2 GB its tensors are in ``model.onnx.data``. Where
OpenVINO won, there is its own form as well: ``openvino.xml`` and ``openvino.bin``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

from octune.backends.onnx.graph import INLINE, Model, declared
from octune.backends.onnx.runtimes import (
    OnnxModel,
    OpenVinoModel,
    OrtModel,
    has_openvino,
    openvino_model,
    session,
)
from octune.errors import ArtifactError
from octune.machine import probe_machine

__all__ = ["load", "save", "versions", "write_graph"]

log = logging.getLogger("octune")
GRAPH, DATA, IR = "model.onnx", "model.onnx.data", "openvino.xml"
# Protobuf ends at 2 GB; the graph itself needs some of it.
ONE_FILE = 1_900_000_000
ALIGNMENT = 4096


def write_graph(graph: Model, path: Path) -> None:
    """One file, or two where one cannot hold it."""
    if graph.nbytes < ONE_FILE:
        onnx.save(graph.whole(), str(path))
        return
    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        for name, array in graph.tensors.items():
            if array.nbytes < INLINE:
                proto.graph.initializer.append(
                    onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
                )
                continue
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            proto.graph.initializer.append(
                declared(name, array, location=data.name, offset=file.tell(), length=array.nbytes)
            )
            np.asarray(array, order="C").tofile(file)
    onnx.save(proto, str(path))


def versions() -> dict[str, str]:
    """The versions of the packages that results depend on."""
    found = {"onnx": onnx.__version__, "onnxruntime": ort.__version__}
    if has_openvino():
        import openvino

        found["openvino"] = openvino.__version__
    return found


def save(model: OnnxModel, folder: Path) -> dict[str, Any]:
    """Write the files; the plain data that comes back is what :func:`load` needs."""
    if model.graph is None:
        raise ArtifactError("This model was itself loaded from a folder; copy that folder instead.")
    write_graph(model.graph, folder / GRAPH)
    if isinstance(model, OpenVinoModel):
        import openvino

        openvino.save_model(model.source, str(folder / IR), compress_to_fp16=False)
    machine = probe_machine()
    return {"runtime": model.runtime, "versions": versions(), "machine": machine.to_json()}


def load(folder: Path, metadata: Mapping[str, Any]) -> OnnxModel:
    """The model on the runtime that won, or on ONNX Runtime where that one is not installed."""
    made_for, here = metadata["machine"], probe_machine()
    if lacking := here.lacks(made_for):
        log.warning(
            "the model was tuned on a CPU with %s, which this one lacks: it may be slower here",
            ", ".join(lacking),
        )
    if not (folder / GRAPH).exists():
        raise ArtifactError(f"{folder} has no {GRAPH}. Copy the whole folder again.")
    if metadata["runtime"] == "openvino":
        if has_openvino():
            proto = onnx.load(str(folder / GRAPH), load_external_data=False)
            return openvino_model(Model(proto), folder / IR, here.cores).detached()
        log.warning(
            "the model was tuned for OpenVINO, which is not installed: ONNX Runtime is used. pip install "
            "'octune[onnx]'"
        )
    return OrtModel(None, session(folder / GRAPH, here.cores))
