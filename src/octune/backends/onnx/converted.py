"""What the converters of other frameworks (their ``to_onnx.py``) need from here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, ModelProto

from octune.backends.base import Outputs
from octune.backends.onnx.graph import subgraphs
from octune.backends.onnx.runtimes import session
from octune.backends.onnx.source import open_model
from octune.errors import UnsupportedError

__all__ = ["EXPORT_OPSET", "check_answers", "rename"]

EXPORT_OPSET = 17
CLOSE = 1e-3


def check_answers(made: ModelProto, inputs: Outputs, wanted: Outputs) -> None:
    """A converter that follows one path through the model may lose another: what it made must compute what
    the model computes, or UnsupportedError is raised.
    """
    running = session(open_model(made)[0], None)
    taken = {item.name for item in running.get_inputs()}
    got = running.run(list(wanted), {name: array for name, array in inputs.items() if name in taken})
    for (name, array), value in zip(wanted.items(), got, strict=True):
        largest = max(1.0, float(np.abs(array).max(initial=0.0)))
        if array.shape != value.shape or not np.allclose(array, value, rtol=CLOSE, atol=CLOSE * largest):
            raise UnsupportedError(
                f"Converted to ONNX, the model returns another {name!r} for the first batch. Convert it "
                "yourself and give the .onnx file, or leave model.target out."
            )


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors other names, in the graph and in the graphs inside it."""
    for item in (*graph.input, *graph.output):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in subgraphs(node):
            rename(inner, names)
