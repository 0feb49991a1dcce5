"""JSON that others may have written, read so that whatever is wrong with it is a ValueError.

    data = loads(path.read_bytes())

Python's own reader, and most of what walks the data later, ends in a RecursionError where a file is nested
deeply enough.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["DEEPEST", "loads"]

DEEPEST = 100  # nothing that Octune or a library writes comes near


def loads(text: str | bytes) -> Any:
    """The data in a text; ValueError if it is not JSON, or nested too deeply."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(DEEPEST):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return data
    raise ValueError("it is nested too deeply")
