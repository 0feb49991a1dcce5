"""What scales and shifts the output channels of a convolution goes into its weights: a BatchNorm, a bias that
an exporter wrote as an ``Add``, a ``Mul`` by constants.

Between a convolution and its activation function, a node of its own would be computed in float, and keep int8
from flowing on.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.graph import Array, Model, View, attribute

__all__ = ["fold_affine"]

SLOTS = {"BatchNormalization": (0,), "Sub": (0,), "Div": (0,), "Add": (0, 1), "Mul": (0, 1)}
Affine = tuple[Array, Array]


def fold_affine(model: Model) -> Counter[str]:
    """Fold in place where nothing else reads the convolution's output; return what was folded, by type."""
    folded = Counter[str]()
    while found := _fold_once(View(model)):  # one may follow another
        folded += found
    return folded


def _fold_once(view: View) -> Counter[str]:
    folded: dict[int, str] = {}
    for index, node in enumerate(view.nodes):
        changed = _convolution(view, index, node)
        if changed is None:
            continue
        slot, conv, weight, bias = changed
        outputs = weight.shape[0] if conv.op_type == "Conv" else weight.shape[1] * attribute(conv, "group", 1)
        affine = _affine(view, node, slot, outputs, weight.ndim)
        if affine is not None:
            _fold(view, conv, weight, bias, *affine)
            conv.output[0] = node.output[0]
            folded[index] = node.op_type
    if folded:
        view.keep(lambda index: index not in folded)
    return Counter(folded.values())


def _convolution(
    view: View, index: int, node: NodeProto
) -> tuple[int, NodeProto, Array, Array | None] | None:
    """The convolution whose output only this node reads, in which slot, and its weight and bias."""
    for slot in SLOTS.get(node.op_type, ()):
        producer = view.producer(node.input[slot])
        if producer is None or view.only_reader(node.input[slot]) != index:
            continue
        conv = view.nodes[producer]
        weight = view.constant(conv.input[1]) if conv.op_type in ("Conv", "ConvTranspose") else None
        biased = len(conv.input) > 2 and bool(conv.input[2])
        bias = view.constant(conv.input[2]) if biased else None
        # The output may have its new name already: then the rest is for the next time.
        if weight is not None and biased == (bias is not None) and conv.output[0] == node.input[slot]:
            return slot, conv, weight, bias
    return None


def _affine(view: View, node: NodeProto, slot: int, outputs: int, rank: int) -> Affine | None:
    """What every output channel is multiplied by, and what is added to it."""
    if node.op_type == "BatchNormalization":
        return _normalisation(view, node)
    value = _by_channel(view.constant(node.input[1 - slot]), outputs, rank)
    if value is None:
        return None
    if node.op_type in ("Add", "Sub"):
        return np.ones(outputs), value if node.op_type == "Add" else -value
    return value if node.op_type == "Mul" else 1 / value, np.zeros(outputs)


def _normalisation(view: View, node: NodeProto) -> Affine | None:
    values = [view.constant(name) for name in node.input[1:5]]
    known = [value.astype(np.float64) for value in values if value is not None]
    if attribute(node, "training_mode", 0) or len([o for o in node.output if o]) > 1 or len(known) < 4:
        return None
    scale, shift, mean, variance = known
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    return factor, shift - mean * factor


def _by_channel(value: Array | None, outputs: int, rank: int) -> Array | None:
    """A constant that gives every channel of an output a number; None if it is anything else."""
    if value is None or value.dtype != np.float32 or value.ndim > rank:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    if shape[1] not in (1, outputs) or value.size != shape[1]:
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), outputs)


def _fold(
    view: View, conv: NodeProto, weight: Array, bias: Array | None, factor: Array, shift: Array
) -> None:
    if conv.op_type == "Conv":
        wide = weight.astype(np.float64) * factor.reshape(-1, *[1] * (weight.ndim - 1))
    else:  # ConvTranspose: (inputs, outputs of a group, ...)
        groups = attribute(conv, "group", 1)
        parts = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
        wide = (parts * factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
    moved = (0.0 if bias is None else bias.astype(np.float64)) * factor + shift
    tensors, names = view.model.tensors, list(conv.input[:2])
    if not np.array_equal(wide, weight):
        names[1] = f"{conv.name}/folded_weight"
        tensors[names[1]] = wide.astype(np.float32)
    tensors[f"{conv.name}/folded_bias"] = moved.astype(np.float32)
    conv.input[:] = [*names, f"{conv.name}/folded_bias"]
