"""What the converters of other frameworks (their ``to_onnx.py``) need from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import GraphProto, ModelProto

from octune.backends.batches import Inputs
from octune.backends.onnx.backend import OnnxBackend
from octune.backends.onnx.graph import subgraphs
from octune.backends.onnx.runtimes import OnnxModel, session
from octune.backends.onnx.source import open_model
from octune.backends.onnx.storage import load, save
from octune.backends.terms import Outputs, Settings
from octune.calibration import Ranges
from octune.errors import UnsupportedError
from octune.plan import Plan
from octune.same_plan import same_plan

__all__ = ["EXPORT_OPSET", "OnnxModel", "check_answers", "load", "on_openvino", "rename", "save"]

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


def on_openvino(
    made: ModelProto,
    settings: Settings,
    plan: Plan,
    ranges: Ranges,
    name_of: Callable[[str], str],
    inputs: Outputs,
) -> tuple[OnnxModel, list[str]]:
    """A converted model on OpenVINO under plan and ranges of the model that it was made from, whose op
    ``name_of`` says; and which int8 ops have no int8 form here. UnsupportedError says why it cannot be made.
    """
    converted = OnnxBackend(made, settings)
    ops = converted.ops()
    twin, missing = same_plan(plan, ops, name_of, calibrated=bool(len(ranges)))
    if plan.names("int8") and not twin.names("int8"):
        raise UnsupportedError("none of its int8 ops was found in the model exported to ONNX")
    known = {op.name: ranges[name_of(op.name)] for op in ops if name_of(op.name) in ranges}
    forms = converted.finalists(twin, Ranges(known, ranges.samples), Inputs((), inputs))
    found = next((form.model for form in forms if form.form == "openvino"), None)
    if found is None:
        raise UnsupportedError("OpenVINO is not installed (pip install 'octune[onnx]')")
    return found, missing


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors other names, in the graph and in the graphs inside it."""
    for item in (*graph.input, *graph.output):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in subgraphs(node):
            rename(inner, names)
