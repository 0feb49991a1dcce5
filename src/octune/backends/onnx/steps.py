"""What nodes inside a Loop or a Scan see, at every step.

    for node, inputs, output in shapes_in_steps(view, {"MatMul"}, feed, threads)[7]:
        ...     # once for each MatMul in the graph of node 7, and each of its steps

Nobody but the runtime knows how many steps there are. So the graph of a step has more results, the shapes of
what its nodes read and make, and the runtime collects them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from octune.backends.batches import Inputs
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, View, attribute
from octune.backends.onnx.runtimes import session

__all__ = ["Seen", "shapes_in_steps"]

log = logging.getLogger("octune")
Shape = tuple[int, ...]
Seen = tuple[NodeProto, list[Shape], Shape]
Taps = list[tuple[NodeProto, list[str]]]  # a node, and where the shapes of its inputs and its output are
# How many results of a step are not among those of the node.
CONDITION = {"Loop": 1, "Scan": 0}


def shapes_in_steps(
    view: View, types: Collection[str], feed: Inputs, threads: int | None
) -> dict[int, list[Seen]]:
    """By the index of a Loop or Scan: its own nodes of these types, not those of a graph further inside."""
    edit = Edit(view)
    taps = {
        index: _tapped(edit, index, types)
        for index, node in enumerate(view.nodes)
        if node.op_type in CONDITION and _is_plain(node)
    }
    taps = {index: listed for index, listed in taps.items() if listed}
    wanted = [name for listed in taps.values() for _, names in listed for name in names]
    if not wanted:
        return {}
    edit.outputs = [ValueInfoProto(name=name) for name in wanted]
    try:
        values = session(edit.finish(), threads).run(wanted, dict(feed.kwargs))
    except Exception:  # the ranks of a tensor may differ from step to step, which cannot be collected
        log.debug("what loops multiply cannot be counted", exc_info=True)
        return {}
    shapes = dict(zip(wanted, values, strict=True))
    return {index: _seen(listed, shapes) for index, listed in taps.items()}


def _is_plain(node: NodeProto) -> bool:
    """Whether all results of its steps are among its own, so that more of them can follow."""
    return len(node.output) == len(_steps_of(node).output) - CONDITION[node.op_type]


def _steps_of(node: NodeProto) -> GraphProto:
    graph: GraphProto = attribute(node, "body")
    return graph


def _tapped(edit: Edit, index: int, types: Collection[str]) -> Taps:
    listed: Taps = []
    if not any(inner.op_type in types for inner in _steps_of(edit.view.nodes[index]).node):
        return listed
    node = edit.node(index)
    body = _steps_of(node)
    for inner in [inner for inner in body.node if inner.op_type in types]:
        names = []
        made = next(name for name in inner.output if name)
        for tensor in [*(name for name in inner.input if name), made]:
            name = edit.name(f"{tensor}/shape")
            body.node.append(helper.make_node("Shape", [tensor], [f"{name}/step"], f"{name}/Shape"))
            body.output.append(helper.make_tensor_value_info(f"{name}/step", TensorProto.INT64, [None]))
            node.output.append(name)
            names.append(name)
        listed.append((inner, names))
    for item in node.attribute:
        if item.name in ("scan_output_axes", "scan_output_directions"):
            item.ints.extend([0] * sum(len(names) for _, names in listed))
    return listed


def _seen(listed: Taps, shapes: Mapping[str, Array]) -> list[Seen]:
    found: list[Seen] = []
    for node, names in listed:
        for step in zip(*(shapes[name] for name in names), strict=True):
            *inputs, output = (tuple(map(int, shape)) for shape in step)
            found.append((node, inputs, output))
    return found
