"""A tokenizer of single words and characters, made on the spot: it needs no file and no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def make_tokenizer(**options: Any) -> Any:
    """Words are split at spaces and punctuation; a word that is a letter or a digit has its own number,
    others share one.
    """
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {
        token: number for number, token in enumerate([*special, *"abcdefghijklmnopqrstuvwxyz0123456789"])
    }
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    options = {**names, "model_max_length": 512, "model_input_names": inputs, **options}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **options)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Writes a file below the test's folder and gives its path."""

    def _write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write
