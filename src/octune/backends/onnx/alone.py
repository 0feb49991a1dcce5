"""One op in one scheme by itself on ONNX Runtime, on the largest input that calibration saw: for timing it.

An op whose output is quantized, too, is timed as part of a chain, with uint8 as input and output; other ops
have float inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from onnx import TensorProto, helper

from octune.backends.onnx.graph import Array, Model, View, headed_like
from octune.backends.onnx.insert import quantized_graph
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.runtimes import ONNX_RUNTIME, session
from octune.backends.onnx.smoothing import SmoothingGroups
from octune.backends.onnx.weights import Int8Weights
from octune.backends.terms import OUTPUT, B
from octune.calibration import Ranges
from octune.plan import Plan, Scheme

__all__ = ["alone"]


def alone(
    source: Model, found: Found, scheme: Scheme, ranges: Ranges, weights: Int8Weights, threads: int | None
) -> Callable[[], object]:
    """A call that runs an op of ``source``."""
    name, random = found.op.name, np.random.default_rng(0)
    seen = Ranges({name + part: ranges[name + part] for part in ("", B, OUTPUT) if name + part in ranges})
    operands = [("x", ""), ("b", B)][: len(found.kind.slots)]
    feed = {operand: found.kind.example(seen[name + part].shape, random) for operand, part in operands}
    model, item = _single(source, found, feed)
    view = View(model)
    groups = SmoothingGroups(view, [item], seen)
    graph = quantized_graph(view, [item], Plan({name: scheme}), weights, groups, ONNX_RUNTIME)
    if not scheme.is_float and found.kind.quantized_output(view, item) is not None:
        feed = _without_ends(graph, feed)
    running = session(graph, threads)
    return partial(running.run, [output.name for output in running.get_outputs()], feed)


def _single(source: Model, found: Found, feed: Mapping[str, Array]) -> tuple[Model, Found]:
    """A graph of this node with its constants, and the op in it. It keeps its name, so that its int8 weights
    are found again.
    """
    constants = {f"constant{place}": array for place, array in enumerate(found.kind.constants(found))}
    inputs = list(constants)
    for slot, operand in zip(found.kind.slots, feed, strict=True):
        inputs.insert(slot, operand)
    node = helper.make_node(found.node.op_type, inputs, ["y"], name=found.op.name)
    node.attribute.extend(a for a in found.node.attribute if a.name not in found.kind.in_weights)
    proto = headed_like(source.proto)
    proto.graph.name = "alone"
    proto.graph.node.append(node)
    proto.graph.input.extend(
        helper.make_tensor_value_info(operand, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for operand, array in feed.items()
    )
    proto.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return Model(proto, constants), replace(found, index=0, node=proto.graph.node[0])


def _without_ends(graph: Model, feed: dict[str, Array]) -> dict[str, Array]:
    """Cut the first Q and the last DQ away, so that inputs and outputs are integers."""
    proto = graph.proto.graph
    first = next(
        (node for node in proto.node if node.op_type == "QuantizeLinear" and node.input[0] == "x"), None
    )
    last = next(
        (node for node in proto.node if node.op_type == "DequantizeLinear" and "y" in node.output), None
    )
    if first is None or last is None:
        return feed
    kept = [node for node in proto.node if node is not first and node is not last]
    incoming, outgoing = first.output[0], last.input[0]
    del proto.node[:]
    proto.node.extend(kept)
    proto.input[0].CopyFrom(helper.make_tensor_value_info(incoming, TensorProto.UINT8, None))
    proto.output[0].CopyFrom(helper.make_tensor_value_info(outgoing, TensorProto.UINT8, None))
    needed = {name for node in kept for name in node.input}
    graph.tensors = {name: array for name, array in graph.tensors.items() if name in needed}
    return {incoming: np.full(feed["x"].shape, 128, np.uint8)}
