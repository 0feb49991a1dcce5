"""Recurrent state among the inputs and outputs of a model, by their names and shapes.

stem("new_states") == stem("state_0")       # what the name says, without what tells one side from the other
is_state("h0"), is_state("pixels")          # True, False
rows_second("h0", (2, 8, 128))              # True: layers come first, and samples second
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_state", "plain", "rows_second", "stem"]

WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# What tells the state that comes in from the one that goes out.
SIDES = {
    "cur", "current", "final", "first", "i", "in", "init", "initial", "input", "last", "n", "new", "next",
    "o", "old", "out", "output", "past", "present", "prev", "previous", "updated",
}  # fmt: skip
SPELLINGS = {"hn": "h", "hx": "h", "hy": "h", "cn": "c", "cx": "c", "cy": "c", "mems": "mem", "memory": "mem"}
STATES = {
    "state", "h", "c", "hidden", "cell", "mem", "cache", "rnn", "lstm", "gru", "carry", "ctx", "context",
}  # fmt: skip


def plain(name: str) -> str:
    """The name without its place in a graph."""
    return name.partition(":")[0].rpartition("/")[2]


def stem(name: str) -> frozenset[str]:
    """The words of a name that say what it is: ``stateN``, ``state_0`` and ``new_states`` are one."""
    words = (word.lower() for word in WORDS.findall(plain(name)))
    singular = (word.removesuffix("s") if len(word) > 4 else word for word in words)
    return frozenset(SPELLINGS.get(word, word) for word in singular if word not in SIDES)


def is_state(name: str) -> bool:
    """Whether something of that name is state."""
    return bool(stem(name) & STATES)


def rows_second(name: str, shape: Sequence[int | None]) -> bool:
    """Whether this is state as recurrent layers take it: layers and directions, samples, width."""
    return len(shape) == 3 and is_state(name)
