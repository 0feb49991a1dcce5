"""Where in a stored tensor a view of it lies.

    Layout.of(weight.t(), weight)       # sizes, strides, and where it begins

Two views that have the same layout hold the same numbers in the same order, whatever was called to make them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Layout", "same_memory", "writes"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A view's sizes and strides, and its offset into what is stored."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, view: torch.Tensor, stored: torch.Tensor | None = None) -> Layout:
        """That of a view; ``stored`` need not begin where its memory begins."""
        start = 0 if stored is None else int(stored.storage_offset())
        return cls(tuple(view.shape), tuple(view.stride()), int(view.storage_offset()) - start)

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.size)

    def permuted(self, order: Sequence[int]) -> Layout:
        """With the dimensions in another order."""
        return Layout(
            tuple(self.size[dim] for dim in order), tuple(self.stride[dim] for dim in order), self.offset
        )

    def of_flat(self, flat: torch.Tensor) -> torch.Tensor:
        """This view of numbers in a row."""
        return flat.as_strided(self.size, self.stride, self.offset)


def same_memory(value: Any, tensor: torch.Tensor) -> bool:
    """Whether a value is a tensor that lies in the memory of another."""
    if not isinstance(value, torch.Tensor):
        return False
    found: bool = value.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    return found


def writes(func: Any) -> bool:
    """Whether a function changes its first argument in place, by PyTorch's way of naming them."""
    name: str = getattr(func, "__name__", "")
    return name.startswith("__i") if name.endswith("__") else name.endswith("_")
