"""Which outputs of a model are not answers: recurrent state and caches, which are fed back at the next call.

    fed_back({"output": (8, 1), "stateN": (2, 8, 128)}, {"input": (8, 512), "state": (2, 8, 128)})
    # ["stateN"]

An output is one if an input of the same shape has the same name apart from words such as "new", "out" or a
number, and that name is one of a state (``state``, ``h``, ``hidden``, ``mems``, ...); or if its own name is
that of a cache (``past_key_values``, ``present.0.key``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from octune.states import is_state, plain, stem

__all__ = ["fed_back"]

Shape: TypeAlias = tuple[int, ...]

CACHES = re.compile(r"(past|present|cache|kv_cache|key_cache|value_cache|new_cache)([._/0-9]|key|value|$)")


def fed_back(outputs: Mapping[str, Shape], inputs: Mapping[str, Shape]) -> list[str]:
    """The names of outputs that are state or caches; none, if that would be all of them."""
    states = {(stem(name), tuple(shape)) for name, shape in inputs.items()}
    found = [
        name
        for name, shape in outputs.items()
        if CACHES.match(plain(name).lower()) or (is_state(name) and (stem(name), tuple(shape)) in states)
    ]
    return found if len(found) < len(outputs) else []
