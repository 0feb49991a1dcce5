"""Where a factor for every channel of a tensor can go, instead of into a multiplication of its own.

    target = find_target(view, ops_by_node, tensor, channels=768, axis=-1)
    target.channels, target.constants, target.op

Scaling an op's output channels is free: they have weights of their own. The way from the op to the tensor may
lead through whatever keeps channels apart and commutes with positive factors: ReLU, pooling, flattening, an
added bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.graph import Array, View, attribute
from octune.backends.onnx.kinds import Found

__all__ = ["SmoothingTarget", "find_target"]

ELEMENTWISE = {"Relu", "LeakyRelu", "Identity", "Dropout"}
POOLING = {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}


@dataclass(frozen=True, slots=True)
class SmoothingTarget:
    """What to multiply: constants by (node, input slot) along an axis, and the output channels of ``op``, if
    there is one.

    ``channels`` may be fewer than the tensor's: behind a Flatten, neighbours belong to the same channel.
    """

    channels: int
    op: Found | None = None
    constants: tuple[tuple[int, int, int], ...] = field(default=())


def find_target(
    view: View, ops: Mapping[int, Found], tensor: str, channels: int, axis: int
) -> SmoothingTarget | None:
    """Follow a tensor back to where its channels can be scaled. The caller's ops must be its only readers.
    None if there is no such place.
    """
    constants: list[tuple[int, int, int]] = []
    flattened = False
    while True:
        index = view.producer(tensor)
        if index is None:
            return None
        node = view.nodes[index]
        found = ops.get(index)
        if found is not None and found.weight is not None and found.kind.multiplies:
            outputs = found.weight.shape[0]
            fits = outputs == channels or (flattened and channels % outputs == 0)
            right_axis = axis == found.kind.channel_axis
            return SmoothingTarget(outputs, found, tuple(constants)) if fits and right_axis else None
        if flattened:
            step: str | None = _spatial(view, node, axis)[0]
        elif _is_flatten(view, node) and axis == -1 and not constants:
            flattened, axis, step = True, 1, node.input[0]
        else:
            norm = _normalisation(view, node, channels, axis)
            if norm:
                return SmoothingTarget(channels, None, (*constants, *((index, slot, 0) for slot in norm)))
            if node.op_type in ("Add", "Mul"):
                slot = _vector_slot(view, node, channels, axis)
                if slot is None:
                    return None
                constants.append((index, slot, axis))
                if node.op_type == "Mul":
                    return SmoothingTarget(channels, None, tuple(constants))
                step = node.input[1 - slot]
            else:
                step, axis = _spatial(view, node, axis)
        if step is None or view.only_reader(step) != index:
            return None
        tensor = step


def _spatial(view: View, node: NodeProto, axis: int) -> tuple[str | None, int]:
    """The input of a node that treats every channel alike, and where the channels are in it."""
    if node.op_type in ELEMENTWISE and not (
        node.op_type == "LeakyRelu" and attribute(node, "alpha", 0.01) < 0
    ):
        return node.input[0], axis
    if node.op_type in POOLING and axis == 1:
        return node.input[0], axis
    if node.op_type == "ReduceMean":
        axes = attribute(node, "axes")
        if axes is None and len(node.input) > 1:
            axes = view.constant(node.input[1])
        rank = view.rank(node.input[0])
        spatial = (
            axes is not None
            and rank is not None
            and rank > 2
            and {int(a) % rank for a in axes} == set(range(2, rank))
        )
        if spatial and (axis == 1 or not attribute(node, "keepdims", 1)):
            return node.input[0], 1
    return None, axis


def _is_flatten(view: View, node: NodeProto) -> bool:
    if node.op_type == "Flatten":
        return bool(attribute(node, "axis", 1) == 1)
    if node.op_type == "Reshape" and (view.rank(node.input[0]) or 0) > 2:
        shape = view.constant(node.input[1])
        return shape is not None and shape.size == 2 and int(shape[1]) == -1 and int(shape[0]) in (0, 1)
    return False


def _normalisation(view: View, node: NodeProto, channels: int, axis: int) -> list[int]:
    """The input slots of a normalisation's scale and shift, if they are constant and run over these
    channels.
    """
    if node.op_type == "LayerNormalization":
        rank = view.rank(node.input[0])
        over_last = attribute(node, "axis", -1) == -1 or (
            rank is not None and attribute(node, "axis", -1) == rank - 1
        )
        if axis != -1 or not over_last:
            return []
    elif node.op_type not in ("BatchNormalization", "InstanceNormalization") or axis != 1:
        return []
    slots = [slot for slot in (1, 2) if slot < len(node.input) and node.input[slot]]
    values = [view.constant(node.input[slot]) for slot in slots]
    return slots if all(value is not None and value.shape == (channels,) for value in values) else []


def _vector_slot(view: View, node: NodeProto, channels: int, axis: int) -> int | None:
    """Which input of an Add or Mul is a constant with a number for every channel.

    One number for all would do as well, but the last factor of a GELU is one, and runtimes know a GELU by it.
    """
    for slot, name in enumerate(node.input):
        value = view.constant(name)
        if value is not None and value.dtype == np.float32 and _over_channels(value, channels, axis):
            return slot
    return None


def _over_channels(value: Array, channels: int, axis: int) -> bool:
    if value.size != channels or value.ndim == 0:
        return False
    return value.shape[-1] == channels if axis == -1 else value.ndim >= 3 and value.shape[-3] == channels
