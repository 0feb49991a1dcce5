"""Token batches: padded just in time, cached, and the same in every walk.

    for inputs, labels in task.evaluation:
        ...     # {"input_ids": int64 (rows, tokens), "attention_mask": ...}, and labels of (rows,)

Evaluation rows come in blocks, each a random sample of all rows (always the same one): that is what lets a
hopeless candidate be stopped early. Inside a block, rows of similar length share a batch, so that little is
padded. Items of a score are in the order of this walk.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError
from octune.evaluation.metrics import Metric

__all__ = [
    "Batch",
    "Padding",
    "TaskData",
    "TaskOptions",
    "TokenBatches",
    "length_blocks",
    "shuffled",
    "single_rows",
]

Inputs: TypeAlias = dict[str, npt.NDArray[np.int64]]
Labels: TypeAlias = npt.NDArray[Any] | list[Any]
Batch: TypeAlias = tuple[Inputs, Labels]
Tokens: TypeAlias = Mapping[str, Sequence[int] | npt.NDArray[np.int32]]

SEED = 1978
# About twenty blocks, so that a twentieth of the rows is the first that can be judged; small ones would pad
# more.
BLOCKS, SMALLEST_BLOCK, LARGEST_BLOCK = 20, 12, 16


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How a task's files are read; :func:`octune.tasks.load_task` says what each of them means."""

    max_length: int | None = None
    calibration_batch_size: int = 8
    evaluation_batch_size: int = 32
    split: str | None = None
    calibration_samples: int | None = None
    label2id: Mapping[str, int] | None = None
    calibrates: bool = True
    size: tuple[int, int] | None = None  # height and width of images

    def __post_init__(self) -> None:
        for name in ("max_length", "calibration_batch_size", "evaluation_batch_size", "calibration_samples"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(
                    f"The {name!r} argument of load_task must be a whole number from 1. Got {value!r} "
                    "instead."
                )

    def length(self, tokenizer: Any, usual: int) -> int:
        """How many tokens a row has at most: ``usual``, if nothing was asked for and the model takes that
        many.
        """
        return min(usual, int(tokenizer.model_max_length)) if self.max_length is None else self.max_length


@dataclass(frozen=True, slots=True)
class Padding:
    """What a tokenizer fills short rows with, and on which side."""

    values: Mapping[str, int]
    left: bool = False

    @classmethod
    def of(cls, tokenizer: Any) -> Padding:
        """The padding of a Hugging Face tokenizer."""
        if tokenizer.pad_token_id is None:
            raise ConfigError(
                "The tokenizer has no padding token. Expected one to fill rows: tokenizer.pad_token = "
                "tokenizer.eos_token."
            )
        values = {
            "input_ids": int(tokenizer.pad_token_id),
            "token_type_ids": int(getattr(tokenizer, "pad_token_type_id", 0) or 0),
        }
        return cls(values, getattr(tokenizer, "padding_side", "right") == "left")

    def pad(self, rows: Sequence[Tokens]) -> Inputs:
        """One array per input name, as long as the longest row."""
        longest = max(len(row["input_ids"]) for row in rows)
        inputs: Inputs = {}
        for name in rows[0]:
            array = np.full((len(rows), longest), self.values.get(name, 0), dtype=np.int64)
            for target, row in zip(array, rows, strict=True):
                values = row[name]
                target[longest - len(values) if self.left else 0 :][: len(values)] = values
            inputs[name] = array
        return inputs


class TokenBatches(ABC):
    """Batches of ``(inputs, labels)`` that can be walked again and again; each is tokenized when it is first
    needed.
    """

    def __init__(self, padding: Padding) -> None:
        self._padding = padding
        self._cache: dict[int, Batch] = {}

    @abstractmethod
    def __len__(self) -> int:
        """The number of batches."""

    @abstractmethod
    def _group(self, index: int) -> Sequence[int]:
        """The rows of one batch."""

    @abstractmethod
    def _encode(self, rows: Sequence[int]) -> tuple[Sequence[Tokens], Labels]:
        """The tokens and the labels of these rows."""

    def about(self, index: int) -> Sequence[Mapping[str, Any]]:
        """What people know the items of one batch by: where they are in the file, and their text."""
        return [{"row": int(row)} for row in self._group(index)]

    @property
    def blocks(self) -> list[int] | None:
        """How many batches each block has, where the rows of blocks are a random sample; None where their
        order is unknown.
        """
        return None

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self._cache:
            tokens, labels = self._encode(self._group(index))
            self._cache[index] = self._padding.pad(tokens), labels
        inputs, labels = self._cache[index]
        # Copies, so that a model which writes into its inputs cannot change the next walk.
        return {name: array.copy() for name, array in inputs.items()}, labels.copy()

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))


class Walk(Protocol):
    """Batches of ``(inputs, labels)`` by number, and what people know the items of one by."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def about(self, index: int) -> Sequence[Mapping[str, Any]]: ...


@dataclass(frozen=True)
class TaskData:
    """All that tuning needs besides the model; ``calibration`` and ``evaluation`` never share a row."""

    calibration: Walk
    evaluation: Walk
    metric: Metric
    description: str


def shuffled(count: int, most: int | None = None) -> npt.NDArray[np.int64]:
    """A fixed random choice of at most ``most`` of ``count`` rows, because files are often sorted by
    topic.
    """
    return np.random.default_rng(SEED).permutation(count)[:most]


def single_rows(encoded: Any) -> list[Tokens]:
    """What a tokenizer made of several texts, one mapping for each of them."""
    names = list(encoded.keys())
    columns = zip(*(encoded[name] for name in names), strict=True)
    return [dict(zip(names, values, strict=True)) for values in columns]


def length_blocks(
    lengths: Sequence[int], size: int, units: Sequence[Sequence[int]] | None = None
) -> list[list[list[int]]]:
    """Blocks of batches: every block is a random sample of rows, every batch has at most ``size`` rows of
    similar length.

        length_blocks([5, 9, 5, 9], 2)          # [[[0, 2], [1, 3]]], in some order

    Rows of one unit stay together. A unit of more than ``size`` rows gets a batch of its own, which is
    larger.
    """
    if not lengths:
        return []
    units = units if units is not None else [[row] for row in range(len(lengths))]
    order = np.random.default_rng(SEED).permutation(len(units))
    batches = min(max(math.ceil(len(lengths) / (BLOCKS * size)), SMALLEST_BLOCK), LARGEST_BLOCK)
    # By the number of units, not of rows: a block that ends where a long unit no longer fits would be short
    # of long ones.
    each = max(1, batches * size * len(units) // len(lengths))
    blocks = (
        [units[number] for number in order[begin : begin + each]] for begin in range(0, len(units), each)
    )
    return [_length_groups(lengths, size, block) for block in blocks]


def _length_groups(lengths: Sequence[int], size: int, units: Sequence[Sequence[int]]) -> list[list[int]]:
    longest = np.array([max(lengths[row] for row in unit) for unit in units])
    groups: list[list[int]] = [[]]
    for number in np.argsort(longest, kind="stable"):
        if groups[-1] and len(groups[-1]) + len(units[number]) > size:
            groups.append([])
        groups[-1].extend(units[number])
    return [groups[index] for index in np.random.default_rng(SEED).permutation(len(groups))]
