"""Data in an ``.npz`` file, as ``numpy.savez`` writes it: inputs by name, and labels.

batches = ArrayBatches(Path("digits.npz"), batch_size=32)                     # [(inputs, labels), ...]
batches = ArrayBatches(Path("digits.npz"), batch_size=8, part="calibration")  # some of its rows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from octune.archives import check_archive
from octune.errors import DataError, summary

__all__ = ["LABELS", "ArrayBatches"]

LABELS = ("label", "labels", "y")
SHARE, MOST = 0.2, 512  # of the rows calibrate, and at most this many; more would change no range
SEED = 1978


class ArrayBatches(Sequence[Any]):
    """Batches of an ``.npz`` file: every array except ``label`` (or ``labels``, ``y``) is an input of that
    name.

    A single array named ``x`` or ``input`` is passed by position. ``part`` is "calibration" or "evaluation":
    two parts that have no row in common.
    """

    def __init__(self, path: Path, batch_size: int, part: str | None = None) -> None:
        arrays = _arrays(path)
        if not set(arrays) - set(LABELS):
            raise DataError(f"{path} holds no input array. Expected inputs by name, and labels as 'label'.")
        if part is not None:
            chosen = _rows(path, len(next(iter(arrays.values()))), part)
            arrays = {name: array[chosen] for name, array in arrays.items()}
        self._label = next((arrays.pop(name) for name in LABELS if name in arrays), None)
        self._inputs, self._size = arrays, batch_size
        self._rows = len(next(iter(arrays.values())))

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._rows

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        return self._label is not None

    def __len__(self) -> int:
        return -(-self._rows // self._size)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows = slice(index * self._size, (index + 1) * self._size)
        inputs: Any = {name: array[rows] for name, array in self._inputs.items()}
        if set(inputs) in ({"x"}, {"input"}):
            inputs = next(iter(inputs.values()))
        return inputs if self._label is None else (inputs, self._label[rows])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file, each with one entry for every row."""
    expected = "Expected an .npz file, as numpy.savez writes it, of arrays with one entry for each row."
    try:
        if is_zipfile(path):
            check_archive(path, DataError)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}. {expected}") from error
    except DataError:
        raise
    except Exception as error:  # zip, zlib and NumPy's header each have their own
        why = f": {summary(error)}" if is_zipfile(path) else " and is not an .npz file"
        raise DataError(f"{path} cannot be read{why}. {expected}") from error
    lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        told = ", ".join(f"{name} {'none' if n is None else n}" for name, n in lengths.items())
        raise DataError(f"The arrays in {path} differ in their number of rows: {told}. {expected}")
    if 0 in lengths.values():
        raise DataError(f"The arrays in {path} have no rows. {expected}")
    return arrays


def _rows(path: Path, count: int, part: str) -> npt.NDArray[np.intp]:
    """The numbers of the rows of a part, always the same for a number of rows: files are often sorted by
    label, so the first rows would not do.
    """
    if count < 2:
        raise DataError(
            f"{path} has {count} rows, which cannot be split into calibration and evaluation data. Give "
            "separate files."
        )
    calibrating = max(1, min(MOST, round(SHARE * count)))
    order = np.random.default_rng(SEED).permutation(count)
    return np.sort(order[:calibrating] if part == "calibration" else order[calibrating:])
