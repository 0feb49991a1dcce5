"""Embeddings: rows that are read, never multiplied."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.kinds.base import Kind
from octune.backends.torch.layers import Bf16Layer, Int8Layer

__all__ = ["Embedding"]


class Int8Embedding(Int8Layer):
    """Rows of int8 with a scale each; only the rows that are read become float."""

    kind = "int8_embedding"
    multiplies_int8 = False

    @property
    def num_embeddings(self) -> int:
        return self.weight_int8.shape[0]

    @property
    def embedding_dim(self) -> int:
        return self.weight_int8.shape[1]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.embedding(input, self.weight_int8).float() * self.weight_scale[input].unsqueeze(-1)


class Bf16Embedding(Bf16Layer):
    """Rows of bfloat16, read as float."""

    kind = "bf16_embedding"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.embedding(input, self.weight).float()


class Embedding(Kind):
    """``nn.Embedding``."""

    name = "embedding"
    plain = nn.Embedding
    layers: ClassVar = {"weight": Int8Embedding, "bf16": Bf16Embedding}
    has_range = False

    @property
    def obstacle(self) -> str:
        renormalised = getattr(self.module, "max_norm", None) is not None
        return super().obstacle or (
            "its rows are renormalised when they are read (max_norm)" if renormalised else ""
        )

    def example(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.long)
