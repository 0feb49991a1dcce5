"""Writing a graph and its tensors as an ONNX file; beyond 2 GB, with its tensors in a file beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from octune.backends.onnx.graph import INLINE, Model, declared

__all__ = ["GRAPH", "write_graph"]

GRAPH = "model.onnx"
# A protobuf holds at most 2 GB, and the graph itself needs some of it.
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
