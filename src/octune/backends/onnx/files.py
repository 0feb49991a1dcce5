"""Writing a graph and its tensors as an ONNX file; beyond 2 GB, with its tensors in a file beside it. And
whether the tensors of a file are beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from octune.backends.onnx.graph import INLINE, Model, declared
from octune.errors import ModelError

__all__ = ["GRAPH", "check_beside", "check_data", "write_graph"]

GRAPH = "model.onnx"
# A protobuf holds at most 2 GB, and the graph itself needs some of it.
ONE_FILE = 1_900_000_000
ALIGNMENT = 4096


def check_data(proto: ModelProto, path: Path) -> None:
    """Raise ModelError if a tensor of a file is kept outside of its folder: runtimes would read it there."""
    for tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            check_beside(tensor, path.parent)


def check_beside(tensor: TensorProto, folder: Path) -> None:
    """Raise ModelError if the file that a tensor is kept in is not in this folder."""
    location = next((item.value for item in tensor.external_data if item.key == "location"), "")
    if not location or not (folder / location).resolve().is_relative_to(folder.resolve()):
        raise ModelError(
            f"Tensor {tensor.name!r} is said to be in {location!r}, outside the model's folder, where "
            "it is not read."
        )


def _tensors(message: Any) -> Iterator[TensorProto]:
    """All tensors, wherever a graph has them: weights, attributes, graphs inside, functions."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(inner)


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
