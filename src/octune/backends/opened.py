"""A model that somebody else made, opened only to be run: what every kind of model has in common.

    model.kind, model.name, model.inputs, model.size, model.ops
    model.coverage(inputs)              # 98% int8, 2% fp32 in MatMul: of the multiply-adds of these inputs
    model.run({"input_ids": ids})       # -> arrays by name; also an array, a tuple, or what split() returned
    model.close()

Backends make these (:meth:`Backend.opened`), and :mod:`octune.opening` finds the backend for a path. Nothing
of the model is changed or prepared: it runs as it would for whoever deploys it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.backends.batches import Inputs, Slot, Splitter
from octune.coverage import Coverage, Work
from octune.errors import DataError, OctuneError, summary

__all__ = ["Covered", "Opened", "Port", "Source", "bytes_of", "free_rows"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model came from. ``kind`` and ``name`` are for people; ``path`` is its file or folder, if it
    has one, and ``metadata`` what Octune wrote beside it, if Octune saved it; ``trusted`` says whether what
    it names may run. ``threads``: None is all cores.
    """

    kind: str
    name: str
    path: Path | None = None
    metadata: Mapping[str, Any] | None = None
    threads: int | None = None
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """An input: its name, and its type and shape as far as they are known (None where they are open).

    ``values`` is how many different ids it may hold, counted from 0, where it holds ids and that is known;
    ``longest`` is how long its sequences may be, where that is known.
    """

    name: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int | None, ...] | None = None
    required: bool = True
    values: int | None = None
    longest: int | None = None

    @classmethod
    def of(cls, slot: Slot, values: int | None = None) -> Port:
        """The input of a graph that declares it."""
        return cls(slot.name, slot.dtype, slot.shape, values=values)

    def __str__(self) -> str:
        shape = (
            ""
            if self.shape is None
            else "[" + ", ".join("?" if s is None else str(s) for s in self.shape) + "]"
        )
        about = f"{self.dtype or ''}{shape}"
        return f"{self.name} ({about})" if about else self.name


@dataclass(frozen=True, slots=True)
class Covered:
    """How many of the ops that multiply by weights (linear layers, convolutions) compute in int8."""

    int8: int
    total: int

    def __str__(self) -> str:
        return f"{self.int8} of {self.total}"


class Opened(ABC):
    """A model that runs.

    ``kind`` says what it is in words ("ONNX file"), ``name`` where it came from. ``size`` is bytes of its
    files, or of its weights where it came from no file of its own. ``ops`` is None where it cannot be
    known. ``rows`` is the number of rows that every call must have, if the model fixes it: calls of any other
    number are cut and put together again.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[Port],
        splitter: Splitter,
        *,
        size: int,
        ops: Covered | None = None,
        rows: int | None = None,
    ) -> None:
        self.kind, self.name, self.inputs = source.kind, source.name, tuple(inputs)
        self.size, self.ops, self.rows = size, ops, rows
        self.config: Any = None  # of a Hugging Face model: how it numbers its labels
        self._splitter = splitter

    def split(self, batch: Any) -> tuple[Inputs, Any]:
        """The inputs and the label (None if there is none) of a batch in any of the usual forms."""
        return self._splitter(batch)

    def run(self, batch: Any) -> dict[str, Array]:
        """The outputs by name, for a batch or for the inputs that :meth:`split` made of it."""
        inputs, _ = self.split(batch)
        try:
            if self.rows is None or inputs.batch_size == self.rows:
                return self._run(inputs)
            parts = [self._fixed(part, self.rows) for part in inputs.parts(self.rows)]
        except OctuneError:
            raise
        except Exception as error:  # every runtime has exceptions of its own
            raise DataError(
                f"{self.name} ({self.kind}) cannot be run on the data: {type(error).__name__}: "
                f"{summary(error).removesuffix('.')}. It takes: {', '.join(map(str, self.inputs))}."
            ) from error
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _fixed(self, part: Inputs, rows: int) -> dict[str, Array]:
        count = part.batch_size
        return {name: array[:count] for name, array in self._run(part.resized(rows)).items()}

    @abstractmethod
    def _run(self, inputs: Inputs) -> dict[str, Array]: ...

    def coverage(self, batch: Any) -> Coverage | None:
        """Which share of the multiply-adds it computes in int8, bf16 and fp32, for a batch or for the inputs
        that :meth:`split` made of it. None where that cannot be told: of native code, say.
        """
        inputs, _ = self.split(batch)
        work = self._work(inputs if self.rows is None else inputs.resized(self.rows))
        return None if work is None else Coverage.ran(work)

    def _work(self, inputs: Inputs) -> Work | None:
        """What it computes, the ops by what they compute in."""
        return None

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of what it holds."""

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


def free_rows(slots: Sequence[Slot]) -> tuple[list[Slot], int | None]:
    """The slots with a free first dimension, and the number that all of them fix it to, if they do."""
    firsts = {slot.shape[0] for slot in slots if slot.shape}
    if len(firsts) != 1 or None in firsts:
        return list(slots), None
    freed = [replace(slot, shape=(None, *slot.shape[1:])) if slot.shape else slot for slot in slots]
    return freed, firsts.pop()


def bytes_of(*paths: Path) -> int:
    """Bytes of files, and of all files in folders."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file())
