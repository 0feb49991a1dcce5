"""Tensor names as users write them, looked up in a graph: with or without ``:0``. Errors list similar
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octune.backends.tensorflow.graph.graph import node_of
from octune.errors import ModelError, nearest

__all__ = ["resolve"]


def resolve(names: Sequence[str], graph: Any, role: str) -> dict[str, str]:
    """Name as written -> tensor name, for tensors of a ``tf.Graph``; ``role`` ("inputs", "outputs") is for
    the message.
    """
    found: dict[str, str] = {}
    for name in names:
        try:
            tensor = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
        except (KeyError, ValueError) as error:
            known = [operation.name for operation in graph.get_operations() if operation.outputs]
            raise ModelError(
                f"model.{role} names {name!r}, which the graph does not have. Nearest names: "
                f"{', '.join(nearest(node_of(name), known))}."
            ) from error
        found[name.removesuffix(":0")] = tensor.name
    return found
