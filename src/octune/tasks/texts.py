"""Batches of texts by themselves, as encoders of sentences read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError
from octune.evaluation.embedding_metrics import POOLINGS
from octune.tasks.batches import Padding, TokenBatches, Tokens, length_blocks, single_rows

__all__ = ["TextBatches", "pooling_of"]

POOLING = Path("1_Pooling") / "config.json"  # where sentence-transformers keeps it


class TextBatches(TokenBatches):
    """Texts in batches of similar length; a label is the number of a text. Texts of one unit share a
    batch.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Any,
        length: int,
        size: int,
        units: Sequence[Sequence[int]] | None = None,
        *,
        random_blocks: bool = False,
    ) -> None:
        super().__init__(Padding.of(tokenizer))
        self._texts, self._tokenizer, self._length = texts, tokenizer, length
        blocks = length_blocks([len(text) for text in texts], size, units)
        self._blocks = [len(block) for block in blocks] if random_blocks else None
        self._groups = [group for block in blocks for group in block]

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def blocks(self) -> list[int] | None:
        return self._blocks

    def about(self, index: int) -> Sequence[Mapping[str, Any]]:
        return [{"row": row, "text": self._texts[row]} for row in self._group(index)]

    def _group(self, index: int) -> Sequence[int]:
        return self._groups[index]

    def _encode(self, rows: Sequence[int]) -> tuple[Sequence[Tokens], npt.NDArray[Any]]:
        encoded = self._tokenizer(
            [self._texts[row] for row in rows],
            truncation=True,
            max_length=self._length,
            padding=False,
            return_attention_mask=True,
        )
        return single_rows(encoded), np.array(rows)


def pooling_of(tokenizer: Any) -> tuple[str, str]:
    """How the vectors of tokens become one of the text, and where that is said: in the tokenizer's folder, as
    sentence-transformers writes it; else their mean.
    """
    file = Path(str(tokenizer.name_or_path)) / POOLING
    try:
        said = json.loads(file.read_text())
    except (OSError, ValueError):  # there is none
        return "mean", "the mean of all tokens, since no 1_Pooling says otherwise"
    for name, key in POOLINGS.items():
        if said.get(key):
            return name, f"{name}, as {POOLING} says"
    raise ConfigError(f"{file} asks for a pooling that is not known. Expected one of: {', '.join(POOLINGS)}.")
