"""The user's data as batches that can be iterated more than once.

    batches = as_batches(loader, role="evaluation")
    for batch in batches: ...

A list, a DataLoader or any other iterable is taken as it is; a function without arguments is called for every
pass; a generator can be iterated only once, so it is read into memory. What cannot be data is refused with a
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from octune.arrays import ArrayBatches
from octune.errors import DataError, plural

__all__ = ["Batches", "as_batches"]


class Batches:
    """Batches that can be iterated again and again, at most ``limit`` of them.

    Where the data allows it they can also be picked by number: ``pick(3)``, of ``count``. ``blocks`` says how
    many batches make a block, for data whose blocks are random samples of its rows. ``about(3)`` is what
    people know the items of that batch by, for data that can tell. ``hint`` is what to try if the model does
    not take them.
    """

    def __init__(
        self,
        walk: Callable[[], Iterator[Any]],
        role: str,
        limit: int | None = None,
        notes: tuple[str, ...] = (),
        pick: Callable[[int], Any] | None = None,
        length: Callable[[], int] | None = None,
        blocks: Callable[[], Sequence[int] | None] | None = None,
        about: Callable[[int], Sequence[Mapping[str, Any]]] | None = None,
        hint: str = "",
    ) -> None:
        self.about = about
        self._walk, self.role, self._limit = walk, role, limit
        self.notes, self.hint = notes, hint
        self.pick, self._length, self._blocks = pick, length, blocks
        # What makes the data anew in another process, where it has a name: then it need not travel.
        self.again: Callable[[], Any] | None = None
        self.at_hand = False  # whether all batches are in memory: then picking one costs nothing

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.again is None:
            return super().__reduce_ex__(protocol)
        return _made_again, (self.again, self.role, self._limit)

    @property
    def count(self) -> int | None:
        """How many batches can be picked by number; None if they can only be iterated."""
        if self.pick is None or self._length is None:
            return None
        return self._length() if self._limit is None else min(self._length(), self._limit)

    @property
    def blocks(self) -> Sequence[int] | None:
        """How many batches each block has; None if the rows are not in random order."""
        return None if self._blocks is None else self._blocks()

    def select(self, numbers: Sequence[int], blocks: Sequence[int] | None = None) -> Batches:
        """Only the batches of these numbers, of data that can be picked from."""
        if self.pick is None:
            raise DataError(
                f"The batches of the {self.role} data cannot be picked by number. Give them as a list."
            )
        about = self.about
        selected = Batches(
            lambda: map(self._picked, numbers),
            self.role,
            None,
            self.notes,
            lambda place: self._picked(numbers[place]),
            lambda: len(numbers),
            lambda: blocks,
            None if about is None else lambda place: about(numbers[place]),
        )
        selected.at_hand = self.at_hand
        return selected

    def _picked(self, number: int) -> Any:
        return None if self.pick is None else self.pick(number)

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in islice(self._walk(), self._limit):
            count += 1
            yield batch
        if count == 0:
            raise DataError(
                f"The {self.role} data is empty: it has no batches. Expected an iterable of batches, for "
                "example a DataLoader."
            )

    def first(self) -> Any:
        """The first batch."""
        return next(iter(self))


def as_batches(data: Any, *, role: str, limit: int | None = None) -> Batches:
    """Make the user's data iterable more than once; ``role`` ("calibration", "evaluation") is for messages.

    ``limit`` bounds the number of batches, which is what lets an endless generator be calibration data.
    """
    if isinstance(data, Batches):
        return data
    expected = (
        "Expected an iterable of batches, for example a DataLoader or a list; a batch is a tensor, a "
        "tuple, a dict or (inputs, label)."
    )
    if isinstance(data, str | bytes):
        raise DataError(f"The {role} data is the {type(data).__name__} {data!r:.60}. {expected}")
    if isinstance(data, Mapping):
        raise DataError(
            f"The {role} data is one dict with the keys {list(data)[:6]}. {expected} Put a single batch in a "
            "list: [batch]."
        )
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        raise DataError(
            f"The {role} data is one array of shape {tuple(data.shape)}. {expected} Put a single batch in a "
            "list: [batch]."
        )
    if not isinstance(data, Iterable) and (isinstance(data, type) or not hasattr(data, "__getitem__")):
        if callable(data):
            return Batches(lambda: iter(_called(data, role)), role, limit)
        raise DataError(f"The {role} data is a {type(data).__name__}, which cannot be iterated. {expected}")
    if isinstance(data, Iterator):
        kept = list(islice(data, limit))
        note = (
            f"the {role} data is a generator, which can be iterated only once: "
            f"{plural(len(kept), 'batch')} of it were read into memory"
        )
        read = Batches(lambda: iter(kept), role, limit, (note,), kept.__getitem__, kept.__len__)
        read.at_hand = True
        return read
    pick, length = _random_access(data)
    batches = Batches(
        lambda: iter(data),
        role,
        limit,
        (),
        pick,
        length,
        lambda: getattr(data, "blocks", None),
        getattr(data, "about", None),
        _hint(data, role),
    )
    batches.at_hand = type(data) in (list, tuple) or isinstance(data, ArrayBatches)
    return batches


def _made_again(make: Callable[[], Any], role: str, limit: int | None) -> Batches:
    return as_batches(make(), role=role, limit=limit)


def _hint(data: Any, role: str) -> str:
    """A data set of PyTorch is iterable like a loader, but its items are single samples."""
    if any(
        kind.__name__ == "Dataset" and kind.__module__.startswith("torch.") for kind in type(data).__mro__
    ):
        return (
            f"The {role} data is a Dataset ({type(data).__name__}), which yields single samples: give "
            "torch.utils.data.DataLoader(dataset, batch_size=32)."
        )
    return ""


def _random_access(data: Any) -> tuple[Callable[[int], Any], Callable[[], int]] | tuple[None, None]:
    """How to get a batch by its number, if that is certain to be the batch that iterating yields."""
    if isinstance(data, Sequence) or isinstance(getattr(type(data), "blocks", None), property):
        return data.__getitem__, data.__len__
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__"):
        return data.__getitem__, data.__len__
    # A DataLoader in order: its batches are made of known items. With workers, picking them one by one would
    # be slower than iterating.
    if (
        type(data).__name__ != "DataLoader"
        or type(getattr(data, "sampler", None)).__name__ != "SequentialSampler"
    ):
        return None, None
    if (
        getattr(data, "num_workers", 1)
        or data.batch_sampler is None
        or type(data.batch_sampler).__name__ != "BatchSampler"
    ):
        return None, None
    groups = list(data.batch_sampler)
    return lambda number: data.collate_fn([data.dataset[item] for item in groups[number]]), groups.__len__


def _called(factory: Callable[[], Any], role: str) -> Iterable[Any]:
    made = factory()
    if isinstance(made, str | bytes) or not isinstance(made, Iterable):
        raise DataError(
            f"The {role} data is a function that returned a {type(made).__name__}. Expected an iterable of "
            "batches."
        )
    return made
