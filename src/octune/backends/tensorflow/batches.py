"""Any form of batch becomes :class:`Inputs`: arrays by tensor name, fitted to what the graph takes.

    splitter = Splitter([Slot("input_ids", "input_ids:0", tf.int32, (None, 128)), ...], strict=False)
    inputs, label = splitter(batch)

An array is one input; a tuple ``(inputs, label)`` is split; a longer tuple is passed by position; a dict is
passed by name. What a tuple means is read off the number, types and ranks of the graph's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from octune.backends.tensorflow.model.names import nearest, short
from octune.errors import DataError

__all__ = ["Feed", "Inputs", "Slot", "Splitter", "find_mask"]

Array = npt.NDArray[Any]
LABELS = ("labels", "label")
MASKS = ("attention_mask", "input_mask", "mask")


@dataclass(frozen=True)
class Slot:
    """One input of a graph: the name callers use, its tensor, type and shape (None where it is open)."""

    name: str
    tensor: str
    dtype: Any
    shape: tuple[int | None, ...] | None

    def array(self, value: Any) -> Array | None:
        """The value as this input takes it, or None if it cannot be that."""
        try:
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        except (TypeError, ValueError):  # ragged lists
            return None
        array = np.asarray(array)
        if (array.dtype.kind in "OSU") != (self.dtype == tf.string):
            return None
        array = array.astype(object) if self.dtype == tf.string else array
        if self.shape == () and array.size == 1:
            array = array.reshape(())  # collate functions like to put single values into lists
        if self.shape is not None and not _fits(array.shape, self.shape):
            return None
        if self.dtype == tf.string:
            return array
        wanted = np.dtype(self.dtype.as_numpy_dtype)
        if array.dtype.kind == "f" and wanted.kind in "iub":
            return None
        return array.astype(wanted, copy=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype.name}{'' if self.shape is None else list(self.shape)})"


@dataclass(frozen=True)
class Inputs:
    """One batch of arrays, by tensor name. ``mask`` says which tokens are real, where that is known."""

    values: Mapping[str, Array]
    mask: npt.NDArray[np.bool_] | None = None

    @property
    def batch_size(self) -> int:
        """The first dimension of the first array that has one."""
        return next((len(array) for array in self.values.values() if array.ndim), 1)

    def resized(self, samples: int) -> Inputs:
        """The same inputs with that many samples: the first ones, or repeated from the start."""
        size = self.batch_size
        index = np.arange(samples) % size

        def cut(array: Array) -> Array:
            return array[index] if array.ndim and len(array) == size else array

        mask = None if self.mask is None else cut(self.mask)
        return Inputs({name: cut(array) for name, array in self.values.items()}, mask)


@dataclass(frozen=True)
class Feed:
    """What a graph with its own iterator is started with; it then reads batch after batch by itself."""

    values: Mapping[str, Array]


def find_mask(named: Iterable[tuple[str, Array]]) -> npt.NDArray[np.bool_] | None:
    """Which tokens are real, as booleans of shape (batch, sequence), by the name of an input."""
    for name, array in named:
        if name.rpartition("/")[2].partition(":")[0] in MASKS and array.ndim == 2:
            return array.astype(bool)
    return None


class Splitter:
    """Tells inputs from label. ``strict``: a key that names no input is an error, else it is left out as
    PyTorch models do it.
    """

    def __init__(self, slots: Sequence[Slot], *, strict: bool) -> None:
        self._slots, self._strict = tuple(slots), strict
        self._by_name = {
            name: slot for slot in slots for name in (slot.name, slot.tensor, slot.tensor.removesuffix(":0"))
        }

    def __call__(self, batch: Any) -> tuple[dict[str, Array], Any]:
        """Arrays by tensor name, and the label (None if there is none)."""
        if isinstance(batch, Mapping):
            return self._from_dict(batch)
        if not isinstance(batch, list | tuple):
            return self._needed(self._fit([batch]), batch), None
        if not self._slots:
            return {}, None
        if not batch:
            raise DataError("A batch is an empty tuple. Expected (inputs, label), or inputs.")
        if len(batch) == 2:
            found = self._whole(batch[0])
            if found is not None:
                return found[0], batch[1] if batch[1] is not None else found[1]
        if (values := self._fit(batch)) is not None:
            return values, None
        if (values := self._fit(batch[:-1])) is not None:
            return values, batch[-1]
        # A single input given as a nested list of numbers.
        return self._needed(self._fit([batch]), batch), None

    def _whole(self, value: Any) -> tuple[dict[str, Array], Any] | None:
        """The first of a pair as inputs, if it can be that."""
        if isinstance(value, Mapping):
            return self._from_dict(value)
        values = self._fit(value) if isinstance(value, list | tuple) else None
        values = self._fit([value]) if values is None else values
        return None if values is None else (values, None)

    def _from_dict(self, batch: Mapping[str, Any]) -> tuple[dict[str, Array], Any]:
        label = next((batch[name] for name in LABELS if name in batch and name not in self._by_name), None)
        unknown = [str(name) for name in batch if name not in self._by_name and name not in LABELS]
        given = {self._by_name[name].name: value for name, value in batch.items() if name in self._by_name}
        missing = [slot.name for slot in self._slots if slot.name not in given]
        known = [slot.name for slot in self._slots]
        if missing or (unknown and self._strict):
            hints = [
                f"{name!r} is none of them (nearest: "
                f"{', '.join(nearest(name, known, 3)) or 'there are none'})"
                for name in unknown
            ]
            lost = [f"{', '.join(missing)} is missing"] if missing else []
            raise DataError(
                f"A batch has the keys {list(batch)}; the model takes {known}: {'; '.join([*hints, *lost])}."
            )
        values = self._fit([given[slot.name] for slot in self._slots])
        return self._needed(values, given), label

    def _fit(self, values: Sequence[Any]) -> dict[str, Array] | None:
        if len(values) != len(self._slots):
            return None
        arrays = {slot.tensor: slot.array(value) for slot, value in zip(self._slots, values, strict=True)}
        found = {name: array for name, array in arrays.items() if array is not None}
        return found if len(found) == len(arrays) else None

    def _needed(self, values: dict[str, Array] | None, batch: Any) -> dict[str, Array]:
        if values is None:
            raise DataError(
                f"The model cannot be run on a batch of {_kind(batch)}. Expected "
                f"{short(map(str, self._slots))}: an array, a tuple in "
                "this order or a dict by these names, alone or as (inputs, label)."
            )
        return values


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
        return f"({', '.join(_kind(item) for item in value)})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", "")
    return f"{type(value).__name__}{f' {dtype}' if dtype else ''}{list(shape) if shape is not None else ''}"
