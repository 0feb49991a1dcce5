"""One batch of inputs as the content of a file: what a model can be prepared on again, without the data.

content = to_bytes(inputs)                  # None if they are of a kind that cannot be kept
inputs = backend.restored(from_bytes(content, path))

The file is an ``.npz`` without pickle: ``header`` says in JSON how the arrays belong together.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octune.archives import check_archive
from octune.backends.batches import Inputs
from octune.errors import WorkspaceError, summary
from octune.plain_json import loads

__all__ = ["from_bytes", "to_bytes"]


def to_bytes(inputs: Any) -> bytes | None:
    """The content of a file with these inputs; None if something in them is neither an array nor plain."""
    if not isinstance(inputs, Inputs):
        return None
    arrays: dict[str, Any] = {}
    try:
        header = [_plain(part, arrays) for part in (inputs.args, inputs.kwargs, inputs.mask)]
    except (TypeError, ValueError, RuntimeError):
        return None
    told = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=told, **arrays)
    return buffer.getvalue()


def from_bytes(content: bytes, path: Path) -> Inputs:
    """The inputs, with NumPy arrays where there were tensors; ``path`` is where it was read, for messages."""
    try:
        check_archive(path, WorkspaceError, content)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            args, kwargs, mask = (_made(part, file) for part in loads(bytes(file["header"])))
    except Exception as error:  # a damaged file fails in as many ways as zip and NumPy's header have parsers
        raise WorkspaceError(f"The inputs in {path} cannot be read ({summary(error)}).") from error
    return Inputs(args, kwargs, mask)


def _plain(value: Any, arrays: dict[str, Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"names": {str(name): _plain(item, arrays) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_plain(item, arrays) for item in value]}
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype == object:
        return {"texts": [_plain(item, arrays) for item in array.reshape(-1)], "shape": list(array.shape)}
    arrays[name := f"array{len(arrays)}"] = array
    return {"array": name}


def _made(told: Mapping[str, Any], file: Any) -> Any:
    if "plain" in told:
        return told["plain"]
    if "bytes" in told:
        return base64.b64decode(told["bytes"])
    if "names" in told:
        return {name: _made(item, file) for name, item in told["names"].items()}
    if "texts" in told:
        array = np.empty(len(told["texts"]), dtype=object)
        array[:] = [_made(item, file) for item in told["texts"]]
        return array.reshape(told["shape"])
    if "array" in told:
        return file[told["array"]]
    items = [_made(item, file) for item in told["list" if "list" in told else "tuple"]]
    return items if "list" in told else tuple(items)
