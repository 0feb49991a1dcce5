"""Embeddings: rows that are read, never multiplied."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.kinds.base import Kind
from octune.backends.torch.layers import Bf16Layer, Int8Layer

__all__ = ["Embedding", "EmbeddingBag"]


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
    plain: ClassVar[type[nn.Module]] = nn.Embedding
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


class _Bag:
    """Sums, means or maxima of rows. ``settings``: mode, include_last_offset, padding_idx."""

    settings: dict[str, Any]

    def rows(self, places: torch.Tensor) -> torch.Tensor:
        """Rows of the table, as float."""
        raise NotImplementedError

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        flat, padding = input.reshape(-1), self.settings["padding_idx"]
        # What is read becomes a table of its own. Its first row is not counted in any bag.
        table = F.pad(self.rows(flat), (0, 0, 1, 0))
        places = torch.arange(1, flat.shape[0] + 1, device=flat.device)
        if padding is not None:
            places = torch.where(flat == padding, 0, places)
        return F.embedding_bag(
            places.reshape(input.shape),
            table,
            None if offsets is None else offsets.long(),
            mode=self.settings["mode"],
            per_sample_weights=per_sample_weights,
            include_last_offset=self.settings["include_last_offset"],
            padding_idx=0,
        )


class Int8EmbeddingBag(_Bag, Int8Layer):
    """Rows of int8 with a scale each."""

    kind = "int8_embedding_bag"
    multiplies_int8 = False

    def rows(self, places: torch.Tensor) -> torch.Tensor:
        return F.embedding(places, self.weight_int8).float() * self.weight_scale[places].unsqueeze(-1)


class Bf16EmbeddingBag(_Bag, Bf16Layer):
    """Rows of bfloat16."""

    kind = "bf16_embedding_bag"

    def rows(self, places: torch.Tensor) -> torch.Tensor:
        return F.embedding(places, self.weight).float()


class EmbeddingBag(Embedding):
    """``nn.EmbeddingBag``."""

    name = "embedding_bag"
    plain = nn.EmbeddingBag
    layers: ClassVar = {"weight": Int8EmbeddingBag, "bf16": Bf16EmbeddingBag}

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.module, name) for name in ("mode", "include_last_offset", "padding_idx")}

    def example(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape if len(shape) == 2 else (1, *shape), dtype=torch.long)  # one bag
