"""Tensor names as users write them, looked up in a graph: with or without ``:0``, and a near miss is told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octune.backends.tensorflow.graph.graph import node_of
from octune.errors import ModelError

__all__ = ["nearest", "resolve", "short"]


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
                f"{', '.join(nearest(name, known))}."
            ) from error
        found[name.removesuffix(":0")] = tensor.name
    return found


def nearest(name: str, known: Iterable[str], limit: int = 5) -> list[str]:
    """The names most like this one: those that hold it or end like it first, then those alike in letters."""
    listed = list(known)
    wanted = node_of(name)
    last = wanted.rpartition("/")[2].lower()
    inside = [
        other for other in listed if wanted.lower() in other.lower() or other.lower().endswith(f"/{last}")
    ]
    alike = difflib.get_close_matches(wanted, listed, n=limit, cutoff=0.4)
    return list(dict.fromkeys([*inside[:limit], *alike]))[:limit] or listed[:limit]


def short(tensors: Mapping[str, Any] | Iterable[str]) -> str:
    """A few names for a message."""
    listed = list(tensors)
    return ", ".join(listed[:8]) + (f", ... ({len(listed)} in all)" if len(listed) > 8 else "")
