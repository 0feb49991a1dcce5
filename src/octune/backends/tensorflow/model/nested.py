"""Nested arguments and results as plain data: dicts, lists and tuples with names as leaves.

    names = name_leaves([x, (y, z)], lambda leaf, path: leaf.name)       # ["x", ("y", "z")]
    pack(names, {"x": 1, "y": 2, "z": 3})                                # [1, (2, 3)]
    from_json(to_json(names)) == names

A leaf without a name (None) stands for something that is not a tensor and is left out when values are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Path = tuple[str | int, ...]

__all__ = ["from_json", "leaves", "name_leaves", "pack", "to_json"]


def name_leaves(nested: Any, name: Callable[[Any, Path], str | None], path: Path = ()) -> Any:
    """The same nesting, each leaf replaced by ``name(leaf, path)``. Dicts are walked by sorted key, as
    TensorFlow does.
    """
    if isinstance(nested, Mapping):
        return {key: name_leaves(nested[key], name, (*path, key)) for key in sorted(nested)}
    if isinstance(nested, list | tuple):
        items = [name_leaves(item, name, (*path, index)) for index, item in enumerate(nested)]
        return items if isinstance(nested, list) else tuple(items)
    return name(nested, path)


def leaves(nested: Any) -> Iterator[Any]:
    """All leaves except None, in TensorFlow's order."""
    if isinstance(nested, Mapping):
        for key in sorted(nested):
            yield from leaves(nested[key])
    elif isinstance(nested, list | tuple):
        for item in nested:
            yield from leaves(item)
    elif nested is not None:
        yield nested


def pack(names: Any, values: Mapping[str, Any]) -> Any:
    """The nesting with each name replaced by its value."""
    if isinstance(names, Mapping):
        return {key: pack(item, values) for key, item in names.items()}
    if isinstance(names, list | tuple):
        packed = [pack(item, values) for item in names]
        return packed if isinstance(names, list) else tuple(packed)
    return None if names is None else values[names]


def to_json(names: Any) -> Any:
    """Plain data that keeps lists and tuples apart."""
    if isinstance(names, Mapping):
        return {"dict": {key: to_json(item) for key, item in names.items()}}
    if isinstance(names, Sequence) and not isinstance(names, str):
        return {"list" if isinstance(names, list) else "tuple": [to_json(item) for item in names]}
    return names


def from_json(data: Any) -> Any:
    """The inverse of :func:`to_json`."""
    if not isinstance(data, Mapping):
        return data
    (kind, items), *_ = data.items()
    if kind == "dict":
        return {key: from_json(item) for key, item in items.items()}
    packed = [from_json(item) for item in items]
    return packed if kind == "list" else tuple(packed)
