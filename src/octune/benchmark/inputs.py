"""What a model is timed on: inputs made from its own signature, or data.

make = MadeInputs(opened)
make(8, 128)                # 8 samples of 128 tokens, as the model takes them

Token ids lie within the vocabulary, masks let everything through, images and other numbers are noise. How
fast a model is depends on shapes, and hardly on values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.backends.batches import MASKS, Inputs
from octune.config import Config
from octune.data import as_batches
from octune.errors import DataError
from octune.opening import Opened, Port
from octune.sources import collect

__all__ = ["DataInputs", "MadeInputs"]

SEQUENCE, SIDE = 128, 224  # of tokens, and of an image, where the model leaves them open
FEWEST = 2  # a vocabulary that is not known has at least this many


class MadeInputs:
    """Makes inputs for a model that says what it takes."""

    def __init__(self, model: Opened) -> None:
        self._model = model
        self._ports = [port for port in model.inputs if port.required or port.shape is not None]
        for port in self._ports:
            if port.shape is None or port.dtype is None or port.dtype == object:
                raise DataError(
                    f"The model does not say what its input {port.name!r} looks like. Give --data FILE.npz "
                    f"with an array of that name for each of: {', '.join(p.name for p in self._ports)}."
                )

    def length(self, sequence: int | None) -> int | None:
        """The length of the sequences that inputs have, where this many are asked for; None for a model
        without sequences.
        """
        found = [size for port in self._ports if (size := self._length(port, sequence)) is not None]
        return min(found, default=None)

    def __call__(self, batch: int, sequence: int | None) -> Inputs:
        """The same inputs for the same sizes."""
        if sequence is not None and self.length(sequence) != sequence:
            fixed = self.length(sequence)
            raise DataError(
                f"It takes sequences of {fixed} only, not of {sequence}."
                if fixed is not None
                else "It takes no sequences, so --sequence does not apply to it."
            )
        random, length = np.random.default_rng(0), self.length(sequence)
        made = {port.name: self._array(port, batch, length, random) for port in self._ports}
        return self._model.split(made)[0]

    @staticmethod
    def _length(port: Port, sequence: int | None) -> int | None:
        shape = port.shape or ()
        if len(shape) in (2, 3) and shape[1] is None:
            return sequence or min(SEQUENCE, port.longest or SEQUENCE)
        return shape[1] if len(shape) == 2 and port.dtype is not None and port.dtype.kind in "iu" else None

    def _array(
        self, port: Port, batch: int, length: int | None, random: np.random.Generator
    ) -> npt.NDArray[Any]:
        declared, dtype = port.shape or (), port.dtype or np.dtype(np.float32)
        free = self._model.rows is not None or declared[:1] == (None,)
        middle = SIDE if len(declared) > 3 else length or SEQUENCE
        shape = tuple(
            batch if axis == 0 and free else middle if size is None else size
            for axis, size in enumerate(declared)
        )
        name = port.name.rpartition("/")[2].partition(":")[0]
        if name in MASKS or dtype.kind == "b":
            return np.ones(shape, dtype)
        if dtype.kind not in "iu":
            return random.standard_normal(shape).astype(dtype)
        if "position" in name:
            return np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy()
        if "type" in name or "segment" in name:
            return np.zeros(shape, dtype)
        return random.integers(0, port.values or FEWEST, shape).astype(dtype)


class DataInputs:
    """The first rows of the data that a configuration names, repeated if there are too few."""

    def __init__(self, model: Opened, config: Mapping[str, Any]) -> None:
        found = collect(Config.from_json(config), model, None, None, None, wants_metric=False)
        data = found.evaluation if found.evaluation is not None else found.calibration
        self._inputs = model.split(as_batches(data, role="evaluation").first())[0]

    def length(self, sequence: int | None) -> int | None:
        """The data has sequences of its own length."""
        return None

    def __call__(self, batch: int, sequence: int | None) -> Inputs:
        return self._inputs.resized(batch)
