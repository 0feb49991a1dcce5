"""Named entities: token classification, read from CoNLL column files.

    task = load_ner("data/conll2003", tokenizer=tokenizer)
    task.metric.name                        # "entity_f1"

A line has a token and its tag, as the first and the last of its columns; an empty line ends a sentence. The
folder holds ``train.txt`` and ``valid.txt`` or ``dev.txt`` (also ``.conll``, ``.bio``, ``.iob2``, ``.tsv``),
or ``eng.train`` and ``eng.testa`` as in the original CoNLL 2003. A tag counts at the first token of its word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octune.errors import DataError
from octune.evaluation.entity_metric import OUTSIDE, EntityF1
from octune.tasks.batches import (
    Padding,
    TaskData,
    TaskOptions,
    TokenBatches,
    Tokens,
    length_blocks,
    shuffled,
    single_rows,
)
from octune.tasks.tables import numbered_lines

__all__ = ["load_ner"]

MAX_LENGTH = 128
SUFFIXES = ("txt", "conll", "bio", "iob", "iob2", "bioes", "tsv")
TRAIN, DEV = ("train",), ("dev", "valid", "validation", "testa")
BREAK = "-DOCSTART-"


@dataclass(frozen=True, slots=True)
class _Sentence:
    words: tuple[str, ...]
    tags: tuple[str, ...]


def load_ner(folder: Path | str, *, tokenizer: Any, options: TaskOptions | None = None) -> TaskData:
    """Read a folder of CoNLL files; see :func:`octune.tasks.load_task` for the options."""
    options = options or TaskOptions()
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"The folder {place} does not exist. Expected one with train.txt and dev.txt.")
    if options.split == "train":
        raise DataError(
            "ner cannot be evaluated on the split 'train': calibration uses it. Leave split out, or name "
            "another."
        )
    judged = _file(place, (options.split,) if options.split else DEV)
    evaluation = list(_sentences(judged))
    train = list(_sentences(_file(place, TRAIN))) if options.calibrates else []
    named = options.label2id or _named_beside(tokenizer)
    tags, numbering = _tags(train or evaluation, evaluation, named, judged)
    length = options.length(tokenizer, MAX_LENGTH)
    chosen = [train[row] for row in shuffled(len(train), options.calibration_samples)]
    judging = _SentenceBatches(evaluation, tokenizer, length, options.evaluation_batch_size, by_length=True)
    return TaskData(
        _SentenceBatches(chosen, tokenizer, length, options.calibration_batch_size, by_length=False),
        judging,
        EntityF1(tags),
        f"entities of {len(evaluation):,} sentences of {judged.name}, calibration on {len(chosen):,} "
        f"training sentences, at most {length} tokens (words beyond that do not count); {numbering}",
    )


class _SentenceBatches(TokenBatches):
    """Sentences in batches; a label is the tag of each token, empty where none counts."""

    def __init__(
        self, sentences: Sequence[_Sentence], tokenizer: Any, length: int, size: int, *, by_length: bool
    ) -> None:
        super().__init__(Padding.of(tokenizer))
        self._sentences, self._tokenizer, self._length = sentences, tokenizer, length
        rows = range(len(sentences))
        self._groups: list[list[int]] = [list(rows[at : at + size]) for at in rows[::size]]
        self._blocks: list[list[list[int]]] | None = None
        if by_length:
            self._blocks = length_blocks([len(sentence.words) for sentence in sentences], size)
            self._groups = [group for block in self._blocks for group in block]

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def blocks(self) -> list[int] | None:
        return None if self._blocks is None else [len(block) for block in self._blocks]

    def about(self, index: int) -> Sequence[Mapping[str, Any]]:
        return [{"row": row, "text": " ".join(self._sentences[row].words)} for row in self._group(index)]

    def _group(self, index: int) -> Sequence[int]:
        return self._groups[index]

    def _encode(self, rows: Sequence[int]) -> tuple[Sequence[Tokens], list[list[str]]]:
        encoded = self._tokenizer(
            [list(self._sentences[row].words) for row in rows],
            is_split_into_words=True,
            truncation=True,
            max_length=self._length,
            padding=False,
            return_attention_mask=True,
        )
        tokens = single_rows(encoded)
        labels = [
            _by_token(encoded.word_ids(number), self._sentences[row].tags) for number, row in enumerate(rows)
        ]
        if self._padding.left:
            longest = max(map(len, labels))
            labels = [[""] * (longest - len(label)) + label for label in labels]
        return tokens, labels


def _by_token(words: Sequence[int | None], tags: Sequence[str]) -> list[str]:
    before = [None, *words]
    return [
        tags[word] if word is not None and word != last else ""
        for word, last in zip(words, before, strict=False)
    ]


def _file(folder: Path, stems: Sequence[str]) -> Path:
    for stem in stems:
        for name in (*(f"{stem}.{suffix}" for suffix in SUFFIXES), f"*.{stem}"):
            found = sorted(folder.glob(name))
            if found:
                return found[0]
    listed = ", ".join(f".{suffix}" for suffix in SUFFIXES[1:])
    raise DataError(f"The folder {folder} has no {stems[0]}.txt (nor {listed}), a CoNLL file of that split.")


def _sentences(file: Path) -> Iterator[_Sentence]:
    words: list[str] = []
    tags: list[str] = []
    columns = 0
    for number, line in numbered_lines(file, blank=True):
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [field.strip() for field in fields]
        if not any(fields) or fields[0] == BREAK:
            if words:
                yield _Sentence(tuple(words), tuple(tags))
            words, tags = [], []
            continue
        if fields[0].startswith("#") and len(fields) != (columns or 2):
            continue  # a comment
        columns = columns or len(fields)
        if len(fields) != columns or columns < 2:
            raise DataError(
                f"{file}, line {number} has {len(fields)} columns. Expected {max(columns, 2)}: a token "
                "first, its tag last."
            )
        words.append(fields[0])
        tags.append(fields[-1])
    if words:
        yield _Sentence(tuple(words), tuple(tags))


def _tags(
    sentences: Sequence[_Sentence],
    evaluation: Sequence[_Sentence],
    label2id: Mapping[str, int] | None,
    file: Path,
) -> tuple[list[str], str]:
    """The tags of the model's classes, in their order, and where that comes from."""
    if not evaluation:
        raise DataError(f"{file} holds no sentences. Expected a token and its tag on every line.")
    if not label2id or all(re.fullmatch(r"(label_)?\d+", str(name).lower()) for name in label2id):
        tags = sorted({tag for sentence in sentences for tag in sentence.tags})
        return tags, "the model does not name its classes, so they are the tags in alphabetical order"
    named = [str(name) for name, _ in sorted(label2id.items(), key=lambda item: item[1])]
    known = {_type(tag) for tag in named} - {""}
    found = {_type(tag) for sentence in evaluation for tag in sentence.tags} - {""}
    if not known & found:
        raise DataError(
            f"{file} has entities of the types {', '.join(sorted(found)) or 'none'}, and the model knows "
            f"{', '.join(sorted(known))}. Expected types in common."
        )
    return named, "classes are those that the model names"


def _type(tag: str) -> str:
    return "" if tag == OUTSIDE else tag.partition("-")[2] or tag


def _named_beside(tokenizer: Any) -> Mapping[str, int] | None:
    """How the model in the tokenizer's folder numbers its classes."""
    try:
        config = json.loads((Path(str(tokenizer.name_or_path)) / "config.json").read_text())
    except (OSError, ValueError):  # there is no such folder, or it holds a tokenizer alone
        return None
    named = config.get("label2id")
    return named if isinstance(named, dict) else None
