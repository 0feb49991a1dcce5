"""One op in one scheme by itself on ONNX Runtime, on the largest input that calibration saw: for timing it.

A convolution is timed as it stands in a chain, with uint8 coming in and going out; other ops take float and
give float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from octune.backends.base import OUTPUT, B
from octune.backends.onnx.discover import Found
from octune.backends.onnx.graph import Array, Model, View
from octune.backends.onnx.insert import quantized_graph
from octune.backends.onnx.runtimes import ONNX_RUNTIME, session
from octune.backends.onnx.smooth import Smoother
from octune.backends.onnx.weights import WeightStore
from octune.calibration import Ranges, TensorStats
from octune.plan import Plan, Scheme

__all__ = ["alone"]


def alone(
    item: Found, scheme: Scheme, ranges: Ranges, store: WeightStore, threads: int | None
) -> Callable[[], object]:
    """A call that runs the op."""
    model, moved = _graph(item)
    seen = {
        moved.op.name + suffix: ranges[item.op.name + suffix]
        for suffix in ("", B, OUTPUT)
        if item.op.name + suffix in ranges
    }
    view = View(model)
    plan, smoother = Plan({moved.op.name: scheme}), Smoother(view, [moved])
    graph = quantized_graph(view, [moved], plan, Ranges(seen), store, smoother, ONNX_RUNTIME)
    feed = _inputs(item, seen, moved.op.name)
    if item.op.kind == "conv" and not scheme.is_float:
        feed = _without_ends(graph, feed)
    running = session(graph, threads)
    return partial(running.run, [output.name for output in running.get_outputs()], feed)


def _graph(item: Found) -> tuple[Model, Found]:
    """A graph of this node with its weights, and the op in it. The name is the op's, so that weights are
    found again.
    """
    node = helper.make_node(item.node.op_type, [], ["y"], name=item.op.name)
    tensors: dict[str, Array] = {}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    kept = [a for a in item.node.attribute if a.name not in ("alpha", "beta", "transB", "transA")]
    node.attribute.extend(kept)
    if item.op.kind == "attention":
        node.input.extend(["x", "b"])
        inputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    elif item.op.kind == "embedding":
        inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, None)]
        node.input.extend(["w", "x"])
        tensors["w"] = _stored(item)
    else:
        node.input.extend(["x", "w", *(["c"] if item.bias is not None else [])])
        tensors["w"] = _stored(item)
        if item.bias is not None:
            tensors["c"] = item.bias
    graph = helper.make_graph(
        [node], "alone", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return Model(proto, tensors), Found(item.op, 0, proto.graph.node[0], item.weight, item.groups, item.bias)


def _stored(item: Found) -> Array:
    weight = item.weight
    if weight is None:
        raise ValueError(f"{item.op.name} has no weight")
    return weight if item.op.kind in ("conv", "embedding") else np.asarray(weight.swapaxes(0, 1), order="C")


def _inputs(item: Found, seen: Mapping[str, TensorStats], name: str) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    if item.op.kind == "embedding":
        return {"x": np.zeros(seen[name].shape, np.int64)}
    feed = {"x": generator.standard_normal(seen[name].shape, np.float32)}
    if item.op.kind == "attention":
        feed["b"] = generator.standard_normal(seen[name + B].shape, np.float32)
    return feed


def _without_ends(graph: Model, feed: dict[str, Any]) -> dict[str, Any]:
    """Cut the first Q and the last DQ away, so that integers come in and go out."""
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
