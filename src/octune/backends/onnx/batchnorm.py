"""A BatchNorm right after a convolution is a scale and a shift of its output channels: both go into its
weights.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.graph import Array, View, attribute

__all__ = ["fold_batchnorms"]


def fold_batchnorms(view: View) -> int:
    """Fold in place where nothing else reads the convolution's output; return how many were folded."""
    folded: set[int] = set()
    for index, node in enumerate(view.nodes):
        if (
            node.op_type != "BatchNormalization"
            or attribute(node, "training_mode", 0)
            or len([o for o in node.output if o]) > 1
        ):
            continue
        producer = view.producer(node.input[0])
        if producer is None or view.only_reader(node.input[0]) != index:
            continue
        conv = view.nodes[producer]
        parameters = [view.constant(name) for name in node.input[1:5]]
        weight = view.constant(conv.input[1]) if conv.op_type in ("Conv", "ConvTranspose") else None
        bias = view.constant(conv.input[2]) if len(conv.input) > 2 and conv.input[2] else None
        known = [p for p in (*parameters, weight) if p is not None]
        if (
            len(known) == 5
            and weight is not None
            and (bias is not None or len(conv.input) < 3 or not conv.input[2])
        ):
            _fold(view, conv, node, weight, bias, [p.astype(np.float64) for p in known[:4]])
            folded.add(index)
    if folded:
        view.keep(lambda index: index not in folded)
    return len(folded)


def _fold(
    view: View, conv: NodeProto, norm: NodeProto, weight: Array, bias: Array | None, parameters: list[Array]
) -> None:
    scale, shift, mean, variance = parameters
    factor = scale / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
    if conv.op_type == "Conv":
        wide = weight.astype(np.float64) * factor.reshape(-1, *[1] * (weight.ndim - 1))
    else:  # ConvTranspose: (inputs, outputs of a group, ...)
        groups = attribute(conv, "group", 1)
        parts = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
        wide = (parts * factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
    moved = ((0.0 if bias is None else bias.astype(np.float64)) - mean) * factor + shift
    tensors = view.model.tensors
    names = [f"{conv.name}/folded_weight", f"{conv.name}/folded_bias"]
    tensors[names[0]], tensors[names[1]] = wide.astype(np.float32), moved.astype(np.float32)
    conv.input[:] = [conv.input[0], *names]
    conv.output[0] = norm.output[0]
