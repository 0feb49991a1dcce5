"""Any form of batch becomes a :class:`Feed`: arrays by input name, in the model's own types.

A tensor or array is the one input; a tuple ``(inputs, label)`` is split; a longer tuple goes by position; a
dict goes by name, and labels inside it are taken as the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.backends.onnx.graph import Array
from octune.errors import DataError

__all__ = ["Feed", "Splitter"]

LABELS = ("labels", "label")
MASKS = ("attention_mask", "input_mask", "mask")


@dataclass(frozen=True)
class Feed:
    """One call of a model."""

    arrays: Mapping[str, Array]

    @property
    def batch_size(self) -> int:
        """The first dimension of the first input that has one."""
        return next((len(array) for array in self.arrays.values() if array.ndim), 1)

    def resized(self, rows: int) -> Feed:
        """The same call on that many samples: the first ones, or repeated from the start."""
        size = self.batch_size
        index = np.arange(rows) % size
        return Feed({name: a[index] if a.ndim and len(a) == size else a for name, a in self.arrays.items()})

    def parts(self, rows: int) -> list[Feed]:
        """The same samples in several calls of at most that many."""
        size = self.batch_size

        def cut(start: int) -> Feed:
            return Feed(
                {
                    name: a[start : start + rows] if a.ndim and len(a) == size else a
                    for name, a in self.arrays.items()
                }
            )

        return [self] if rows >= size else [cut(start) for start in range(0, size, rows)]

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """Which tokens are real, as booleans of shape (batch, sequence), if the batch says so."""
        for name in MASKS:
            value = self.arrays.get(name)
            if value is not None and value.ndim == 2:
                return value.astype(bool)
        return None


class Splitter:
    """Tells inputs from label by the number and the names of the model's inputs."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = dict(types)
        self._names = list(types)

    def __call__(self, batch: Any) -> tuple[Feed, Any]:
        """The feed and the label (None if there is none)."""
        if isinstance(batch, Feed):
            return batch, None
        if isinstance(batch, list | tuple):
            return self._from_tuple(batch)
        return self._inputs(batch)

    def _from_tuple(self, batch: Sequence[Any]) -> tuple[Feed, Any]:
        count = len(self._names)
        if not batch:
            raise DataError("A batch is an empty tuple. Expected (inputs, label), or inputs.")
        if len(batch) == 2 and (count == 1 or isinstance(batch[0], Mapping | list | tuple)):
            feed, inner = self._inputs(batch[0])
            return feed, batch[1] if batch[1] is not None else inner
        if len(batch) == count:
            return self._by_position(batch), None
        if len(batch) == count + 1:
            return self._by_position(batch[:-1]), batch[-1]
        raise DataError(
            f"A batch is a tuple of {len(batch)}, and the model has {count} inputs "
            f"({', '.join(self._names)}). "
            "Expected (inputs, label), where inputs is an array, a tuple of all inputs or a dict by name."
        )

    def _inputs(self, value: Any) -> tuple[Feed, Any]:
        if isinstance(value, Mapping):
            missing = [name for name in self._names if name not in value]
            if missing:
                raise DataError(
                    f"A batch has the keys {list(value)}; the model also needs {', '.join(missing)}. Its "
                    f"inputs: {', '.join(self._names)}."
                )
            label = next((value[name] for name in LABELS if name in value and name not in self._names), None)
            return Feed({name: self._array(value[name], name) for name in self._names}), label
        if isinstance(value, list | tuple) and len(self._names) > 1:
            return self._by_position(value), None
        if len(self._names) != 1:
            raise DataError(
                f"A batch is one {type(value).__name__}, and the model has the inputs "
                f"{', '.join(self._names)}. Give a dict."
            )
        return Feed({self._names[0]: self._array(value, self._names[0])}), None

    def _by_position(self, values: Sequence[Any]) -> Feed:
        if len(values) != len(self._names):
            raise DataError(
                f"A batch has {len(values)} inputs, and the model has {len(self._names)}: "
                f"{', '.join(self._names)}."
            )
        return Feed({name: self._array(value, name) for name, value in zip(self._names, values, strict=True)})

    def _array(self, value: Any, name: str) -> Array:
        detached = value.detach().cpu() if hasattr(value, "detach") else value
        try:
            array = np.asarray(detached)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"A batch holds {name} as a {type(value).__name__}, which is no array: {error}"
            ) from error
        wanted = self._types.get(name)
        if array.dtype == object or (array.dtype.kind in "US" and wanted is not None):
            raise DataError(
                f"A batch holds {name} as {type(value).__name__} of {array.dtype}. Expected numbers; "
                "tokenize text first."
            )
        return array if wanted is None or array.dtype == wanted else array.astype(wanted)
