"""Which outputs of a model are no answers: recurrent state and caches, which are fed back at the next call.

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

__all__ = ["fed_back"]

Shape: TypeAlias = tuple[int, ...]

CACHES = re.compile(r"(past|present|cache|kv_cache|key_cache|value_cache|new_cache)([._/0-9]|key|value|$)")
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# What tells the state that comes in from the one that goes out.
SIDES = {
    "cur", "current", "final", "first", "i", "in", "init", "initial", "input", "last", "n", "new", "next",
    "o", "old", "out", "output", "past", "present", "prev", "previous", "updated",
}  # fmt: skip
SPELLINGS = {"hn": "h", "hx": "h", "hy": "h", "cn": "c", "cx": "c", "cy": "c", "mems": "mem", "memory": "mem"}
STATES = {
    "state",
    "h",
    "c",
    "hidden",
    "cell",
    "mem",
    "cache",
    "rnn",
    "lstm",
    "gru",
    "carry",
    "ctx",
    "context",
}


def fed_back(outputs: Mapping[str, Shape], inputs: Mapping[str, Shape]) -> list[str]:
    """The names of outputs that are state or caches; none, if that would be all of them."""
    states = {(_stem(name), tuple(shape)) for name, shape in inputs.items()}
    found = [
        name
        for name, shape in outputs.items()
        if CACHES.match(_plain(name).lower())
        or (_stem(name) & STATES and (_stem(name), tuple(shape)) in states)
    ]
    return found if len(found) < len(outputs) else []


def _plain(name: str) -> str:
    return name.partition(":")[0].rpartition("/")[2]


def _stem(name: str) -> frozenset[str]:
    """The words of a name that say what it is: ``stateN``, ``state_0`` and ``new_states`` are one."""
    words = (word.lower() for word in WORDS.findall(_plain(name)))
    singular = (word.removesuffix("s") if len(word) > 4 else word for word in words)
    return frozenset(SPELLINGS.get(word, word) for word in singular if word not in SIDES)
