"""Activation functions as exporters write them: one node, or several that all come from one tensor and end in
one (``x * sigmoid(x)``, ``x * clip(x + 3, 0, 6) / 6``).
"""

from __future__ import annotations

from octune.backends.onnx.graph import View

__all__ = ["feeds_activation"]

ELEMENTWISE = {
    "Add", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max",
    "Min", "Mish", "Mul", "Relu", "Selu", "Sigmoid", "Softplus", "Sub", "Tanh",
}  # fmt: skip


def feeds_activation(view: View, tensor: str) -> bool:
    """Whether a tensor is read by an activation function and by nothing else."""
    inside, waiting = {tensor}, sorted(view.readers(tensor))
    read_outside = {tensor} & {*view.outputs}
    while waiting:
        index = waiting.pop(0)
        node = view.nodes[index]
        reads = [name for name in node.input if name]
        if node.op_type in ELEMENTWISE and all(name in inside or _is_number(view, name) for name in reads):
            made = str(node.output[0])
            inside.add(made)
            if made in view.outputs or not view.readers(made):
                read_outside.add(made)
            waiting = sorted({*waiting, *view.readers(made)})
        else:
            read_outside.update(inside.intersection(reads))
    return len(read_outside) == 1 and tensor not in read_outside


def _is_number(view: View, tensor: str) -> bool:
    value = view.constant(tensor)
    return value is not None and value.size == 1
