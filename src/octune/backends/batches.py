"""What a batch means: which of it are inputs, which is the label, and which tokens are padding.

    splitter = Fitting([Slot("ids", "ids:0", np.dtype("int32"), (None, 128)), ...])
    inputs, label = splitter(batch)

An array is one input; a dict is passed by name, a tuple by position; each alone, or with its label as
``(inputs, label)``. The label may also be the last of a longer tuple, or a key of the dict. These rules and
their messages are the same for all backends. What differs is how a way of reading a tuple is found to be
possible: :class:`Fitting` compares types and shapes with those that a graph declares, and PyTorch, where
nothing is declared, tries the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import DataError, nearest, short, summary
from octune.states import is_state, rows_second

__all__ = ["Fitting", "Inputs", "Mask", "Slot", "Splitter", "find_mask", "real_rows"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
LABELS = ("labels", "label")
LAYERS = range(1, 9)  # how many a recurrent network has, directions counted apart
MASKS = ("attention_mask", "input_mask", "mask")


@dataclass(frozen=True)
class Inputs:
    """One call of a model: arrays or tensors by position and by name.

    ``mask`` says which tokens are real, as booleans of shape (batch, sequence), where that is known.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mask: Mask | None = None

    def __call__(self, model: Any) -> Any:
        return model(*self.args, **self.kwargs)

    @property
    def batch_size(self) -> int:
        """The first dimension of the first array that has one, and that is not state."""
        plain = [
            value for name, value in self.kwargs.items() if not rows_second(name, getattr(value, "shape", ()))
        ]
        arrays = list(_arrays([*self.args, *plain])) or self.arrays
        return next((len(array) for array in arrays if array.ndim), 1)

    @property
    def is_joined(self) -> bool:
        """Whether samples of several lengths are written one behind the other, with another input that says
        where each begins. Such a call cannot be cut.
        """
        first, *others = [array for array in self.arrays if array.ndim] or [None]
        return (
            first is not None
            and first.ndim == 1
            and any(other.ndim == 1 and len(other) != len(first) for other in others)
        )

    def rows(self, which: slice | npt.NDArray[np.intp]) -> Inputs:
        """The same call on some of its samples. Those of recurrent state are along its second axis."""
        size = self.batch_size

        def cut(value: Any, name: str | None = None) -> Any:
            if type(value) in (list, tuple):
                return type(value)(cut(item, name) for item in value)
            if not getattr(value, "ndim", 0):
                return value
            layers = value.shape[0] if value.ndim == 3 and value.shape[1] == size else 0
            # A name decides where both axes may be samples; an array without a name is what it can be.
            if layers in LAYERS and (layers != size if name is None else is_state(name)):
                return value[:, which]
            return value[which] if len(value) == size else value

        kwargs = {name: cut(value, name) for name, value in self.kwargs.items()}
        return Inputs(tuple(map(cut, self.args)), kwargs, cut(self.mask, ""))

    @property
    def arrays(self) -> list[Any]:
        """All arrays that are handed to the model."""
        return list(_arrays([*self.args, *self.kwargs.values()]))

    def resized(self, samples: int) -> Inputs:
        """The same call on that many samples: the first ones, or repeated from the start."""
        if self.is_joined:
            return self
        return self.rows(np.arange(samples) % self.batch_size)

    @property
    def length(self) -> int | None:
        """How long its sequences are, of tokens or else of vectors; None for images and the like."""
        if self.mask is not None:
            return int(self.mask.shape[1])
        tokens = [array for array in self.arrays if array.ndim == 2 and "float" not in str(array.dtype)]
        vectors = [array for array in self.arrays if array.ndim == 3]
        return next((int(array.shape[1]) for array in tokens or vectors), None)

    def lengthened(self, sequence: int) -> Inputs:
        """The same call with sequences of that length: cut, or repeated from the start."""
        length = self.length
        if length is None or self.is_joined:
            shapes = ", ".join(str(list(array.shape)) for array in self.arrays)
            raise DataError(f"inputs of the shapes {shapes} have no sequences")
        which = np.arange(sequence) % length

        def cut(value: Any) -> Any:
            return value[:, which] if getattr(value, "ndim", 0) > 1 and value.shape[1] == length else value

        kwargs = {name: cut(value) for name, value in self.kwargs.items()}
        return Inputs(tuple(map(cut, self.args)), kwargs, cut(self.mask))

    def parts(self, rows: int) -> list[Inputs]:
        """The same samples in several calls of at most that many."""
        size = self.batch_size
        if rows >= size or self.is_joined:
            return [self]
        return [self.rows(slice(start, start + rows)) for start in range(0, size, rows)]


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _arrays(item)
    elif hasattr(value, "ndim"):
        yield value


# -- padding -------------------------------------------------------------------------------------------------


def find_mask(named: Iterable[tuple[str, Any]]) -> Mask | None:
    """Which tokens are real, by the name of an input, which may be a path in a graph."""
    for name, value in named:
        if name.rpartition("/")[2].partition(":")[0] in MASKS and getattr(value, "ndim", 0) == 2:
            return np.asarray(value != 0)
    return None


def real_rows(array: Array, mask: Mask | None) -> Array | None:
    """The rows of real tokens, or None if the array does not hold tokens.

    Padding is not data: what it does to a range says nothing about real tokens. Tokens are found as (batch,
    sequence, channels) and as (batch * sequence, channels), which is how some models multiply them.
    """
    if mask is None:
        return None
    if array.shape[:-1] == mask.shape:
        return np.asarray(array[mask])
    if array.ndim == 2 and len(array) == mask.size:
        return np.asarray(array[mask.reshape(-1)])
    return None


# -- inputs and label ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """One way to read a batch."""

    what: str  # for messages
    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] | None = None
    label: Any = None


class Splitter(ABC):
    """Tells inputs from label.

    ``names``: the model's inputs, in order, by every name that a caller may use. ``required``: those that it
    cannot do without. ``strict``: a key that names no input is an error, else it is left out. ``any_name``:
    the model takes other names as well.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        required: Iterable[str],
        *,
        strict: bool = False,
        any_name: bool = False,
    ) -> None:
        self._names, self._required = dict(names), tuple(required)
        self._strict, self._any_name = strict, any_name

    @abstractmethod
    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
        """These values as the model takes them; DataError says why it cannot."""

    def takes(self) -> Sequence[str]:
        """The model's inputs, for messages."""
        return list(dict.fromkeys(self._names.values()))

    def __call__(self, batch: Any) -> tuple[Inputs, Any]:
        """The inputs and the label (None if there is none)."""
        if isinstance(batch, Inputs):
            return batch, None
        if isinstance(batch, list | tuple) and not batch:
            raise DataError("A batch is an empty tuple. Expected (inputs, label), or inputs.")
        failures: dict[str, str] = {}
        for reading in self.readings(batch):
            try:
                return self.read(reading, batch)
            except Exception as error:  # PyTorch runs the model, which may raise anything
                said = summary(error).removesuffix(".")
                kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
                failures.setdefault(reading.what, f"{kind}{said}")
        tried = "; ".join(f"{what}: {why}" for what, why in failures.items())
        raise DataError(
            f"The model cannot be run on a batch of {_kind(batch)}. Expected "
            f"{short(self.takes()) or 'inputs'}: an array, a tuple in this order or a dict by these names, "
            f"alone or as (inputs, label). Tried {tried}."
        )

    def read(self, reading: Reading, batch: Any) -> tuple[Inputs, Any]:
        """Inputs and label by one reading of a batch; raises if the model cannot be run that way."""
        if reading.named is None:
            return self.fit(reading.args, {}), reading.label
        inner = next((reading.named[name] for name in LABELS if name in reading.named), None)
        inputs = self.fit((), self._by_name(reading.named))
        return inputs, inner if reading.label is None else reading.label

    def readings(self, batch: Any) -> Iterator[Reading]:
        """What a batch can mean, the likeliest first."""
        if isinstance(batch, Mapping):
            yield Reading("by name", named=batch)
            return
        if not isinstance(batch, list | tuple):
            yield Reading("as one array", (batch,))
            return
        if len(batch) == 2:
            first, label = batch
            if isinstance(first, Mapping):
                yield Reading("as (inputs by name, label)", named=first, label=label)
            else:
                args = tuple(first) if isinstance(first, list | tuple) else (first,)
                yield Reading("as (inputs, label)", args, label=label)
        yield Reading("as inputs", tuple(batch))
        if len(batch) > 2:
            yield Reading("as inputs and a label at the end", tuple(batch[:-1]), label=batch[-1])
        # Nested lists of numbers.
        if (array := _as_array(batch)) is not None:
            yield Reading("as one array", (array,))
        nested = batch[0] if len(batch) == 2 and isinstance(batch[0], list | tuple) else None
        if nested is not None and (array := _as_array(nested)) is not None:
            yield Reading("as (one array, label)", (array,), label=batch[1])

    def _by_name(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs among the keys of a dict, by the model's names."""
        given = {
            self._names.get(name, name): value
            for name, value in batch.items()
            if name in self._names or (self._any_name and name not in LABELS)
        }
        missing = [name for name in self._required if name not in given]
        unknown = [str(name) for name in batch if name not in self._names and name not in LABELS]
        if missing or not given or (unknown and self._strict):
            known = list(dict.fromkeys(self._names.values()))
            near = {name: ", ".join(nearest(name, known, 3)) for name in unknown}
            faults = [f"{name!r} is none of them (nearest: {names})" for name, names in near.items()]
            if missing:
                faults.append(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
            raise DataError(" and ".join(faults) or "it has no inputs")
        return given


# -- graphs that declare their inputs ------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """One input of a graph: the name callers use, its tensor, type and shape (None where it is open)."""

    name: str
    tensor: str
    dtype: np.dtype[Any]  # object: strings
    shape: tuple[int | None, ...] | None

    def array(self, value: Any) -> Array:
        """The value as this input takes it; DataError if it cannot be that."""
        array = _as_array(value)
        if array is None:
            raise DataError(f"{self.name} is of type {type(value).__name__}, not an array")
        text = array.dtype.kind in "OSU"
        if text != (self.dtype == object):
            raise DataError(f"{self.name} is {'text; tokenize text first' if text else 'not text'}")
        if self.shape == () and array.size == 1:
            array = array.reshape(())  # collate functions like to put single values into lists
        if self.shape is not None and not _fits(array.shape, self.shape):
            raise DataError(f"{self.name} has the shape {list(array.shape)}")
        with np.errstate(invalid="ignore"):
            cast = array.astype(self.dtype, copy=False)
        if array.dtype.kind == "f" and self.dtype.kind in "iub" and not np.array_equal(array, cast):
            raise DataError(f"{self.name} has numbers that are not whole")
        return cast

    def __str__(self) -> str:
        kind = "string" if self.dtype == object else self.dtype.name
        return f"{self.name} ({kind}{'' if self.shape is None else list(self.shape)})"


class Fitting(Splitter):
    """Reads a batch by the number, types and shapes of a graph's inputs; arrays come back by tensor name."""

    def __init__(self, slots: Sequence[Slot], *, strict: bool = False) -> None:
        self._slots = tuple(slots)
        names = {
            name: slot.name
            for slot in slots
            for name in (slot.name, slot.tensor, slot.tensor.removesuffix(":0"))
        }
        super().__init__(names, [slot.name for slot in slots], strict=strict)

    def takes(self) -> Sequence[str]:
        return list(map(str, self._slots))

    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
        values = args or [kwargs[slot.name] for slot in self._slots]
        if len(values) != len(self._slots):
            raise DataError(f"{len(values)} given, {len(self._slots)} expected")
        arrays = {slot.name: slot.array(value) for slot, value in zip(self._slots, values, strict=True)}
        return Inputs((), {slot.tensor: arrays[slot.name] for slot in self._slots}, find_mask(arrays.items()))


def _as_array(value: Any) -> Array | None:
    """Tensors of any framework, numbers, texts and nested lists of these; None for anything else."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, RuntimeError):  # ragged lists
        return None
    if array.dtype.kind in "SU":
        return array.astype(object)
    texts = array.dtype != object or all(isinstance(item, str | bytes) for item in array.reshape(-1))
    return array if texts else None


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size in (None, got) for size, got in zip(wanted, shape, strict=True)
    )


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_kind(item)}" for key, item in list(value.items())[:8]) + "}"
    if (
        isinstance(value, list | tuple)
        and len(value) <= 8
        and not all(isinstance(item, int | float) for item in value)
    ):
        return f"({', '.join(map(_kind, value))})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", "")
    return f"{type(value).__name__}{f' {dtype}' if dtype else ''}{list(shape) if shape is not None else ''}"
