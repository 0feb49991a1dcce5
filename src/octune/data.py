"""The user's data as batches that can be walked more than once.

    batches = as_batches(loader, role="evaluation")
    for batch in batches: ...

A list, a DataLoader or any other iterable is taken as it is; a function without arguments is called for every walk;
a generator can be walked only once, so it is drawn into memory. What cannot be data is refused with a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from octune.errors import DataError

__all__ = ["Batches", "as_batches"]

log = logging.getLogger("octune")


class Batches:
    """Batches that can be walked again and again, at most ``limit`` of them."""

    def __init__(self, walk: Callable[[], Iterator[Any]], role: str, limit: int | None = None, notes: tuple[str, ...] = ()) -> None:
        self._walk, self._role, self._limit = walk, role, limit
        self.notes = notes

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in islice(self._walk(), self._limit):
            count += 1
            yield batch
        if count == 0:
            raise DataError(f"The {self._role} data is empty: it gave no batch. Expected an iterable of batches, for example a DataLoader.")

    def first(self) -> Any:
        """The first batch."""
        return next(iter(self))


def as_batches(data: Any, *, role: str, limit: int | None = None) -> Batches:
    """Make the user's data walkable more than once; ``role`` ("calibration", "evaluation") is for messages.

    ``limit`` bounds the number of batches, which is what lets an endless generator be calibration data.
    """
    expected = (
        "Expected an iterable of batches, for example a DataLoader or a list; a batch is a tensor, a tuple, a dict or (inputs, label)."
    )
    if isinstance(data, str | bytes):
        raise DataError(f"The {role} data is the {type(data).__name__} {data!r:.60}. {expected}")
    if isinstance(data, Mapping):
        raise DataError(f"The {role} data is one dict with the keys {list(data)[:6]}. {expected} Put a single batch in a list: [batch].")
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        raise DataError(f"The {role} data is one array of shape {tuple(data.shape)}. {expected} Put a single batch in a list: [batch].")
    if not isinstance(data, Iterable) and (isinstance(data, type) or not hasattr(data, "__getitem__")):
        if callable(data):
            return Batches(lambda: iter(_called(data, role)), role, limit)
        raise DataError(f"The {role} data is a {type(data).__name__}, which cannot be walked. {expected}")
    if isinstance(data, Iterator):
        kept = list(islice(data, limit))
        note = f"the {role} data is a generator, which can be walked only once: its {len(kept)} batches were drawn into memory"
        log.warning("%s", note)
        return Batches(lambda: iter(kept), role, limit, (note,))
    return Batches(lambda: iter(data), role, limit)


def _called(factory: Callable[[], Any], role: str) -> Iterable[Any]:
    made = factory()
    if isinstance(made, str | bytes) or not isinstance(made, Iterable):
        raise DataError(f"The {role} data is a function that returned a {type(made).__name__}. Expected an iterable of batches.")
    return made
