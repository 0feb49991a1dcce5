"""SQuAD v1.1 and v2.0: the official files, windows over long contexts, and answers from a model's span
logits.

    task = load_squad("squad", "data/squad", tokenizer=tokenizer)
    rows, labels = collect(model, task.evaluation)          # (start_logits, end_logits) rows, window numbers
    task.metric.score(rows, labels).value                   # F1, 0 to 100

A context that is too long becomes several windows that overlap by ``doc_stride`` tokens. Windows of one
question always share a batch, so that any number of whole batches answers whole questions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, DataError, EvaluationError
from octune.evaluation.squad_metric import DecodedAnswer, SquadF1
from octune.tasks.batches import Padding, TaskData, TaskOptions, TokenBatches, Tokens, length_blocks, shuffled
from octune.tasks.glue import plain_name
from octune.tasks.squad_answers import Question, SpanRules, Window, decode_spans
from octune.tasks.tables import find_split, read_table

__all__ = ["SQUAD", "SquadWindows", "load_squad", "read_squad"]

SQUAD: dict[str, str] = {
    **dict.fromkeys(("squad", "squad1", "squad11", "squadv1", "squadv11"), "v1.1"),
    **dict.fromkeys(("squad2", "squad20", "squadv2", "squadv20"), "v2.0"),
}
MAX_LENGTH = 384
CHUNK = 512  # questions tokenized at a time


def load_squad(
    name: str,
    folder: Path | str,
    *,
    tokenizer: Any,
    options: TaskOptions | None = None,
    doc_stride: int | None = None,
    rules: SpanRules | None = None,
) -> TaskData:
    """Read SQuAD; see :func:`octune.tasks.load_task` for the options.

    ``doc_stride``, the overlap of windows, is 128 tokens, or a third of a ``max_length`` that is less than
    384.
    """
    options = options or TaskOptions()
    if plain_name(name) not in SQUAD:
        raise ConfigError(f"Unknown version {name!r} of SQuAD. Expected squad (v1.1) or squad_v2 (v2.0).")
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"SQuAD needs a fast tokenizer, for the characters of each token. Got {type(tokenizer).__name__} "
            "instead."
        )
    version = SQUAD[plain_name(name)]
    if options.split == "train":
        raise DataError(
            "SQuAD cannot be evaluated on the split 'train': calibration uses it. Leave split out, or name "
            "another."
        )
    train_file = _find_file(Path(folder), "train", version) if options.calibrates else None
    dev_file = _find_file(Path(folder), options.split or "dev", version)
    train = [] if train_file is None else read_squad(train_file, version)
    dev = read_squad(dev_file, version)
    shared = {question.id for question in train} & {question.id for question in dev}
    if shared:
        raise DataError(
            f"{train_file} and {dev_file} share {len(shared)} questions, such as {min(shared)!r}. "
            "Calibration needs others."
        )
    length = options.length(tokenizer, MAX_LENGTH)
    stride = doc_stride if doc_stride is not None else min(128, length // 3)
    padding = Padding.of(tokenizer)
    rules = replace(rules or SpanRules(), version_2=version == "v2.0", padding_left=padding.left)
    chosen = [train[index] for index in shuffled(len(train), options.calibration_samples)]
    windows = SquadWindows(dev, tokenizer, length, stride, rules)
    return TaskData(
        _CalibrationBatches(
            SquadWindows(chosen, tokenizer, length, stride, rules), padding, options.calibration_batch_size
        ),
        _EvaluationBatches(windows, padding, options.evaluation_batch_size),
        SquadF1(windows),
        f"SQuAD {version}: F1 on {len(dev):,} questions of {dev_file.name}, "
        f"{'' if train_file is None else f'calibration on {len(chosen):,} of {train_file.name}, '}"
        f"windows of {length} tokens that overlap by {stride}",
    )


def read_squad(file: Path, version: str = "v1.1") -> list[Question]:
    """The questions of an official SQuAD file, or of a table as data set libraries save it.

    In v1.1 each needs an answer, in v2.0 none means that there is none.
    """
    try:
        if file.suffix in (".parquet", ".arrow", ".jsonl"):
            parts = sorted(file.parent.glob(re.sub(r"\d+-of-", "*-of-", file.name)))
            questions = [_row(row.values) for part in parts for row in read_table(part)]
            return _answered(questions, file, version)
        articles = json.loads(file.read_text(encoding="utf-8-sig"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        questions = [
            _question(entry, paragraph["context"]) for paragraph in paragraphs for entry in paragraph["qas"]
        ]
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno} is not JSON: {error.msg}.") from error
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        expected = "Expected data > paragraphs > context and qas > id, question, answers."
        raise DataError(f"{file} is not in SQuAD's format ({error!r}). {expected}") from error
    return _answered(questions, file, version)


def _answered(questions: list[Question], file: Path, version: str) -> list[Question]:
    if not questions:
        raise DataError(f"{file} holds no questions. Expected an official SQuAD file.")
    if version == "v1.1":
        for question in questions:
            if not question.answers:
                raise DataError(
                    f"{file}: the question {question.id!r} has no answer. Expected one in v1.1; v2.0 is the "
                    "task squad_v2."
                )
    return questions


class SquadWindows:
    """The windows of questions, tokenized when first needed; also what turns logits of windows into
    answers.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Any,
        max_length: int,
        doc_stride: int,
        rules: SpanRules,
    ) -> None:
        self.questions, self.rules = questions, rules
        self._tokenizer, self._max_length, self._stride = tokenizer, max_length, doc_stride
        self._windows: list[Window] | None = None

    @property
    def version_2(self) -> bool:
        return self.rules.version_2

    @property
    def windows(self) -> list[Window]:
        """All windows, in the order of the file."""
        if self._windows is None:
            count = len(self.questions)
            self._windows = [
                window
                for begin in range(0, count, CHUNK)
                for window in self.encode(range(count)[begin : begin + CHUNK])
            ]
        return self._windows

    def encode(self, rows: Sequence[int]) -> Iterator[Window]:
        """The windows of these questions."""
        texts = [self.questions[row].text.strip() for row in rows]
        self._check_room(rows, texts)
        encoded = self._tokenizer(
            texts,
            [self.questions[row].context for row in rows],
            truncation="only_second",
            max_length=self._max_length,
            stride=self._stride,
            padding=False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=True,
        )
        cls = -1 if self._tokenizer.cls_token_id is None else self._tokenizer.cls_token_id
        names = [name for name in encoded if name not in ("offset_mapping", "overflow_to_sample_mapping")]
        for number, sample in enumerate(encoded["overflow_to_sample_mapping"]):
            offsets = np.array(encoded["offset_mapping"][number], dtype=np.int32)
            offsets[[part != 1 for part in encoded.sequence_ids(number)]] = -1
            tokens = {name: np.array(encoded[name][number], dtype=np.int32) for name in names}
            # argmax: the first [CLS], or token 0 for a model that has none
            yield Window(rows[sample], tokens, offsets, int(np.equal(tokens["input_ids"], cls).argmax()))

    def question(self, window: int) -> int:
        """The number of the question that a window belongs to."""
        if not 0 <= window < len(self.windows):
            raise EvaluationError(
                f"The label {window} is not a window of this data set, which has {len(self.windows)}. "
                "Use the labels of its batches."
            )
        return self.windows[window].question

    def decode(
        self, rows: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]], windows: Sequence[int]
    ) -> list[DecodedAnswer]:
        """One answer per question among the windows of these numbers."""
        return decode_spans(rows, windows, self.windows, self.questions, self.rules)

    def _check_room(self, rows: Sequence[int], texts: list[str]) -> None:
        """A question must leave more room than windows overlap: else the tokenizer panics, which no ``except
        Exception`` catches.
        """
        room = self._max_length - self._tokenizer.num_special_tokens_to_add(pair=True)
        encoded = self._tokenizer(
            texts, add_special_tokens=False, truncation=False, padding=False, verbose=False
        )["input_ids"]
        for row, tokens in zip(rows, encoded, strict=True):
            if room - len(tokens) <= self._stride:
                raise DataError(
                    f"The question {self.questions[row].id!r} has {len(tokens)} tokens, which leaves "
                    f"{room - len(tokens)} for its context. "
                    f"Expected more than the overlap of {self._stride}: raise max_length, "
                    f"{self._max_length}, or lower doc_stride."
                )


class _EvaluationBatches(TokenBatches):
    """All windows; the labels are their numbers, by which the metric finds question and context."""

    def __init__(self, source: SquadWindows, padding: Padding, size: int) -> None:
        super().__init__(padding)
        self._source, self._size = source, size
        self._blocks: list[list[list[int]]] | None = None
        self._groups: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._grouped())

    @property
    def blocks(self) -> list[int]:
        self._grouped()
        return [len(block) for block in self._blocks or ()]

    def _grouped(self) -> list[list[int]]:
        if self._blocks is None:
            units: dict[int, list[int]] = {}
            for number, window in enumerate(self._source.windows):
                units.setdefault(window.question, []).append(number)
            self._blocks = length_blocks(
                [len(window) for window in self._source.windows], self._size, list(units.values())
            )
            self._groups = [group for block in self._blocks for group in block]
        return self._groups

    def _group(self, index: int) -> Sequence[int]:
        return self._grouped()[index]

    def about(self, index: int) -> Sequence[Mapping[str, Any]]:
        numbers = dict.fromkeys(self._source.question(row) for row in self._group(index))
        questions = [self._source.questions[number] for number in numbers]
        return [{"row": question.id, "text": question.text} for question in questions]

    def _encode(self, rows: Sequence[int]) -> tuple[Sequence[Tokens], npt.NDArray[Any]]:
        return [self._source.windows[row].tokens for row in rows], np.array(rows, dtype=np.int64)


class _CalibrationBatches(TokenBatches):
    """One window per question, now an early and now a late one; the labels are -1, because these are not
    windows of the evaluation.
    """

    def __init__(self, source: SquadWindows, padding: Padding, size: int) -> None:
        super().__init__(padding)
        self._source, self._size = source, size

    def __len__(self) -> int:
        return math.ceil(len(self._source.questions) / self._size)

    def _group(self, index: int) -> Sequence[int]:
        return range(len(self._source.questions))[index * self._size : (index + 1) * self._size]

    def _encode(self, rows: Sequence[int]) -> tuple[Sequence[Tokens], npt.NDArray[Any]]:
        windows: dict[int, list[Window]] = {row: [] for row in rows}
        for window in self._source.encode(rows):
            windows[window.question].append(window)
        return [choice[row % len(choice)].tokens for row, choice in windows.items()], np.full(
            len(rows), -1, dtype=np.int64
        )


def _find_file(folder: Path, stem: str, version: str) -> Path:
    if not folder.is_dir():
        raise DataError(
            f"The folder {folder} does not exist. Expected the folder of SQuAD, or the one that holds it."
        )
    for place in (
        folder,
        *sorted(child for child in folder.iterdir() if child.is_dir() and plain_name(child.name) in SQUAD),
    ):
        if (place / f"{stem}-{version}.json").is_file():
            return place / f"{stem}-{version}.json"
        found = sorted(place.glob(f"{stem}*{version}*.json"))
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise DataError(
                f"The folder {place} has several files for {stem}: {names}. Expected one, or "
                f"{stem}-{version}.json among them."
            )
        if found:
            return found[0]
        # validation is what data set libraries call dev.
        table = [
            file
            for file in find_split(place, ("validation", "dev") if stem == "dev" else (stem,))
            if file.suffix != ".json"
        ]
        if table:
            return table[0]
    purpose = "Calibration" if stem == "train" else "Evaluation"
    raise DataError(f"The folder {folder} has no {stem}-{version}.json. {purpose} questions come from there.")


def _row(values: Mapping[str, Any]) -> Question:
    """A row of a data set library: its answers are one mapping with a list of texts."""
    return _question(
        {**values, "answers": [{"text": text} for text in values["answers"]["text"]]}, values["context"]
    )


def _question(entry: Mapping[str, Any], context: str) -> Question:
    answers = (
        ()
        if entry.get("is_impossible", False)
        else tuple(dict.fromkeys(str(answer["text"]) for answer in entry["answers"]))
    )
    if not isinstance(context, str) or not isinstance(entry["question"], str):
        raise TypeError(f"the context or question of {entry['id']!r} is not text")
    return Question(str(entry["id"]), entry["question"], context, answers)
