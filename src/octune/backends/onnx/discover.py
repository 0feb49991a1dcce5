"""Which nodes of a graph could be quantized, and how.

for found in discover(view):
    found.op, found.node, found.weight
"""

from __future__ import annotations

from dataclasses import replace

from onnx import NodeProto

from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.kinds import KINDS, Found

__all__ = ["discover"]


def discover(view: View) -> list[Found]:
    """All ops of the main graph that could be quantized, in its order."""
    found = [item for index, node in enumerate(view.nodes) if (item := _found(view, index, node)) is not None]
    shared: dict[int, list[str]] = {}
    for item in found:
        if item.weight is not None:
            shared.setdefault(_address(item.weight), []).append(item.op.name)
    return [_with_ties(item, shared) for item in found]


def _found(view: View, index: int, node: NodeProto) -> Found | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    found = (kind.find(view, index, node) for kind in KINDS if kind.node_type == node.op_type)
    return next((item for item in found if item is not None), None)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _with_ties(item: Found, shared: dict[int, list[str]]) -> Found:
    if item.weight is None:
        return item
    others = [name for name in shared[_address(item.weight)] if name != item.op.name]
    if not others:
        return item
    note = f"its weight is shared with {', '.join(others[:4])}; each has its own in int8"
    return replace(item, op=replace(item.op, note=note))
