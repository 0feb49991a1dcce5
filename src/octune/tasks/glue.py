"""GLUE: the nine tasks, read from the official .tsv files or from a folder saved by a data set library.

    task = load_glue("SST-2", "data/glue", tokenizer=tokenizer)
    task.metric.name                        # "accuracy"

The folder is the task's own or the one that holds it. Calibration rows come from the training split,
evaluation rows from the development split. Labels are numbered as GLUE's published models number them, or by
``label2id``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, DataError
from octune.evaluation.metrics import Metric, get_metric
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
from octune.tasks.tables import FORMATS, TableRow, find_split, read_table

__all__ = ["GLUE", "GlueTask", "glue_metric", "load_glue", "plain_name", "read_pairs"]

MAX_LENGTH = 128
MOST_BROKEN = 0.001  # the official QQP files hold a few dozen broken rows in 363,871


@dataclass(frozen=True, slots=True)
class GlueTask:
    """One task: where its files are, which columns count, and what its labels are called, in order."""

    title: str
    metric: str
    columns: tuple[str, ...]  # one or two sentences, then the label: as in the official file
    library_columns: tuple[str, ...]  # the same as data set libraries name them
    labels: tuple[str, ...]  # none: the label is a number to predict
    folder: str = ""  # where it is not the title
    header: tuple[str, ...] | None = None  # of an official file that has none
    dev: tuple[str, ...] = ("dev", "validation")
    has_broken_rows: bool = False


_ENTAILMENT = ("entailment", "not_entailment")
_MNLI: dict[str, Any] = {
    "metric": "accuracy",
    "columns": ("sentence1", "sentence2", "gold_label"),
    "library_columns": ("premise", "hypothesis", "label"),
    "labels": ("entailment", "neutral", "contradiction"),
    "folder": "MNLI",
}
_ONE, _TWO = ("sentence", "label"), ("sentence1", "sentence2", "label")

GLUE: dict[str, GlueTask] = {
    "cola": GlueTask(
        "CoLA",
        "mcc",
        _ONE,
        _ONE,
        ("unacceptable", "acceptable"),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask("SST-2", "accuracy", _ONE, _ONE, ("negative", "positive")),
    "mrpc": GlueTask(
        "MRPC", "f1", ("#1 String", "#2 String", "Quality"), _TWO, ("not_equivalent", "equivalent")
    ),
    "stsb": GlueTask("STS-B", "spearmanr", ("sentence1", "sentence2", "score"), _TWO, ()),
    "qqp": GlueTask(
        "QQP",
        "f1",
        ("question1", "question2", "is_duplicate"),
        ("question1", "question2", "label"),
        ("not_duplicate", "duplicate"),
        has_broken_rows=True,
    ),
    "mnli": GlueTask("MNLI", dev=("dev_matched", "validation_matched"), **_MNLI),
    "mnlimm": GlueTask("MNLI-mm", dev=("dev_mismatched", "validation_mismatched"), **_MNLI),
    "qnli": GlueTask(
        "QNLI", "accuracy", ("question", "sentence", "label"), ("question", "sentence", "label"), _ENTAILMENT
    ),
    "rte": GlueTask("RTE", "accuracy", _TWO, _TWO, _ENTAILMENT),
    "wnli": GlueTask("WNLI", "accuracy", _TWO, _TWO, ("not_entailment", "entailment")),
}


def plain_name(name: str) -> str:
    """A name without what spellings differ in: ``plain_name("STS-B")`` is ``"stsb"``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def glue_metric(name: str) -> Metric:
    """The metric by which a GLUE task is judged here: ``glue_metric("MRPC").name`` is ``"f1"``."""
    return get_metric(_task(name).metric)


def load_glue(
    name: str,
    folder: Path | str,
    *,
    tokenizer: Any,
    options: TaskOptions | None = None,
) -> TaskData:
    """Read a GLUE task; see :func:`octune.tasks.load_task` for the options."""
    options = options or TaskOptions()
    task = _task(name)
    numbers = _label_numbers(task, options.label2id)
    place = _find_folder(task, Path(folder))
    train, evaluation, source = _read_splits(task, place, options, numbers)
    length = options.length(tokenizer, MAX_LENGTH)
    special = int(tokenizer.num_special_tokens_to_add(pair=len(task.columns) > 2))
    if length <= special:  # the tokenizer would not cut at all
        raise ConfigError(
            f"The 'max_length' argument must be more than the tokenizer's {special} special tokens. Got "
            f"{length} instead."
        )
    chosen = [train[index] for index in shuffled(len(train), options.calibration_samples)]
    metric = get_metric(task.metric)
    return TaskData(
        _GlueBatches(chosen, tokenizer, length, options.calibration_batch_size, by_length=False),
        _GlueBatches(evaluation, tokenizer, length, options.evaluation_batch_size, by_length=True),
        metric,
        f"GLUE {task.title}: {metric.name} on {len(evaluation):,} rows of {source}, "
        f"calibration on {len(chosen):,} training rows, at most {length} tokens",
    )


def read_pairs(
    name: str, folder: Path, options: TaskOptions
) -> tuple[list[tuple[tuple[str, ...], float]], list[tuple[tuple[str, ...], float]], str]:
    """The training rows and the rows to evaluate of a task whose label is a number, and the name of the
    latter's file.
    """
    task = _task(name)
    train, evaluation, source = _read_splits(task, _find_folder(task, folder), options, {})
    first, second = ([(item.texts, float(item.label)) for item in rows] for rows in (train, evaluation))
    return first, second, source


@dataclass(frozen=True, slots=True)
class _Item:
    texts: tuple[str, ...]
    label: int | float


class _GlueBatches(TokenBatches):
    """Rows of one split; with ``by_length`` similar lengths share a batch, else the given order is kept."""

    def __init__(
        self, items: Sequence[_Item], tokenizer: Any, max_length: int, size: int, *, by_length: bool
    ) -> None:
        super().__init__(Padding.of(tokenizer))
        self._items, self._tokenizer, self._max_length, self._size = items, tokenizer, max_length, size
        self._by_length = by_length
        self._tokens: list[Tokens] | None = None
        self._blocks: list[list[list[int]]] | None = None
        self._groups: list[list[int]] = []

    def __len__(self) -> int:
        return math.ceil(len(self._items) / self._size)

    @property
    def blocks(self) -> list[int] | None:
        if not self._by_length:
            return None
        self._grouped()
        return [len(block) for block in self._blocks or ()]

    def about(self, index: int) -> Sequence[Mapping[str, Any]]:
        return [{"row": int(row), "text": " | ".join(self._items[row].texts)} for row in self._group(index)]

    def _grouped(self) -> list[list[int]]:
        if self._blocks is None:  # lengths are known only after tokenizing all
            self._tokens = self._tokenize(range(len(self._items)))
            self._blocks = length_blocks([len(tokens["input_ids"]) for tokens in self._tokens], self._size)
            self._groups = [group for block in self._blocks for group in block]
        return self._groups

    def _group(self, index: int) -> Sequence[int]:
        if not self._by_length:
            return range(len(self._items))[index * self._size : (index + 1) * self._size]
        return self._grouped()[index]

    def _encode(self, rows: Sequence[int]) -> tuple[Sequence[Tokens], npt.NDArray[Any]]:
        tokens = self._tokenize(rows) if self._tokens is None else [self._tokens[row] for row in rows]
        return tokens, np.array([self._items[row].label for row in rows])

    def _tokenize(self, rows: Sequence[int]) -> list[Tokens]:
        texts = [list(column) for column in zip(*(self._items[row].texts for row in rows), strict=True)]
        encoded = self._tokenizer(
            *texts, truncation=True, max_length=self._max_length, padding=False, return_attention_mask=True
        )
        return single_rows(encoded)


def _task(name: str) -> GlueTask:
    key = {"sst": "sst2", "mnlimatched": "mnli", "mnlim": "mnli", "mnlimismatched": "mnlimm"}.get(
        plain_name(name), plain_name(name)
    )
    if key not in GLUE:
        raise ConfigError(
            f"Unknown GLUE task {name!r}. Expected one of: {', '.join(task.title for task in GLUE.values())}."
        )
    return GLUE[key]


def _find_folder(task: GlueTask, folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(
            f"The folder {folder} does not exist. Expected the folder of {task.title}, or the one that holds "
            "it."
        )
    wanted = {plain_name(task.folder or task.title), plain_name(task.title)}
    for place in (
        folder,
        *sorted(child for child in folder.iterdir() if child.is_dir() and plain_name(child.name) in wanted),
    ):
        if find_split(place, ("train", *task.dev)) or (place / "msr_paraphrase_train.txt").is_file():
            return place
    raise DataError(
        f"The folder {folder} holds no data of {task.title}. Expected {task.dev[0]}.tsv and train.tsv in it "
        "or in its folder "
        f"{task.folder or task.title} (or the same as {', '.join(FORMATS[1:])})."
    )


def _read_splits(
    task: GlueTask, folder: Path, options: TaskOptions, numbers: Mapping[str, int]
) -> tuple[list[_Item], list[_Item], str]:
    """The training rows, the rows to evaluate, and the name of the file of the latter."""
    split = options.split
    if split == "train":
        raise DataError(
            f"{task.title} cannot be evaluated on the split 'train': calibration uses it. Leave split out, "
            "or name another."
        )
    train_files = find_split(folder, ("train",))
    evaluation_files = find_split(folder, (split,) if split is not None else task.dev)
    original = folder / "msr_paraphrase_train.txt"
    if task.title == "MRPC" and not train_files and original.is_file():
        return _read_original_mrpc(task, folder, original, evaluation_files, numbers)
    for stem, files in (("train", train_files), (split or task.dev[0], evaluation_files)):
        if not files and (options.calibrates or stem != "train"):
            purpose = "Calibration rows come" if stem == "train" else "Evaluation rows come"
            raise DataError(
                f"The folder {folder} has no {stem}.tsv (nor {', '.join(FORMATS[1:])}). {purpose} from there."
            )
    source = evaluation_files[0].name
    train = _read_items(task, train_files, numbers) if options.calibrates else []
    return train, _read_items(task, evaluation_files, numbers), source


def _read_original_mrpc(
    task: GlueTask, folder: Path, original: Path, evaluation_files: list[Path], numbers: Mapping[str, int]
) -> tuple[list[_Item], list[_Item], str]:
    """MRPC as Microsoft ships it: GLUE's dev_ids.tsv takes the development rows out of training; without it
    the test file evaluates.
    """
    rows = list(read_table(original))
    ids, test = folder / "dev_ids.tsv", folder / "msr_paraphrase_test.txt"
    if evaluation_files:
        return (
            _items(task, rows, original, numbers),
            _read_items(task, evaluation_files, numbers),
            evaluation_files[0].name,
        )
    if ids.is_file():
        held_out = {
            (row.values["first"], row.values["second"]) for row in read_table(ids, ("first", "second"))
        }
        is_dev = [(row.values.get("#1 ID"), row.values.get("#2 ID")) in held_out for row in rows]
        parts = [
            [row for row, dev in zip(rows, is_dev, strict=True) if dev is wanted] for wanted in (False, True)
        ]
        return (
            _items(task, parts[0], original, numbers),
            _items(task, parts[1], ids, numbers),
            f"{original.name} named in {ids.name}",
        )
    if test.is_file():
        return _items(task, rows, original, numbers), _read_items(task, [test], numbers), test.name
    raise DataError(
        f"The folder {folder} has {original.name} but nothing to evaluate on. Expected dev.tsv, {ids.name} "
        f"or {test.name}."
    )


def _read_items(task: GlueTask, files: Sequence[Path], numbers: Mapping[str, int]) -> list[_Item]:
    broken: list[int] | None = [] if task.has_broken_rows else None
    rows = list(chain.from_iterable(read_table(file, _header(task, file), broken) for file in files))
    if broken and len(broken) > max(2, MOST_BROKEN * len(rows)):
        raise DataError(
            f"{files[0]} has {len(broken)} rows with the wrong number of fields, first line {broken[0]}. "
            "Download it again."
        )
    return _items(task, rows, files[0], numbers)


def _header(task: GlueTask, file: Path) -> tuple[str, ...] | None:
    """CoLA's official files have no header line; a .tsv made by someone else may have."""
    if task.header is None or file.suffix != ".tsv":
        return None
    with file.open(encoding="utf-8-sig", errors="replace", newline="\n") as handle:
        first = handle.readline().rstrip("\r\n").split("\t")
    return None if set(task.library_columns) <= set(first) else task.header


def _items(task: GlueTask, rows: Iterable[TableRow], file: Path, numbers: Mapping[str, int]) -> list[_Item]:
    items: list[_Item] = []
    columns: tuple[str, ...] | None = None
    for row in rows:
        if columns is None:
            columns = _columns(task, row)
        *texts, label = (row.values.get(column) for column in columns)
        strings = tuple(text for text in texts if isinstance(text, str))
        if len(strings) != len(texts):
            raise DataError(
                f"{row.where()}: expected text in {', '.join(columns[:-1])}. Got {row.values} instead."
            )
        items.append(_Item(strings, _label(task, row, columns[-1], label, numbers)))
    if not items:
        raise DataError(f"{file} holds no rows. Expected the rows of {task.title}.")
    return items


def _columns(task: GlueTask, row: TableRow) -> tuple[str, ...]:
    for columns in (task.columns, task.library_columns):
        if set(columns) <= set(row.values):
            return columns
    found = ", ".join(row.values)
    raise DataError(
        f"{row.file} does not look like {task.title}. Expected the columns {', '.join(task.columns)}. Got "
        f"{found} instead."
    )


def _label(task: GlueTask, row: TableRow, column: str, label: Any, numbers: Mapping[str, int]) -> int | float:
    text = str(label).strip()
    try:
        if not task.labels:
            value = float(text)
            if math.isfinite(value):
                return value
        elif text.lower() in numbers:
            return numbers[text.lower()]
        elif 0 <= int(text) < len(task.labels):
            return numbers[task.labels[int(text)]]
    except ValueError:
        pass
    known = " or ".join([*task.labels, f"0 to {len(task.labels) - 1}"]) if task.labels else "a number"
    raise DataError(
        f"{row.where()}: the {column} is {text!r}. Expected {known}. (The test splits of GLUE have no "
        "labels.)"
    )


def _label_numbers(task: GlueTask, label2id: Mapping[str, int] | None) -> dict[str, int]:
    """The number of each label; a model's own numbering wins unless it is nameless (LABEL_0, LABEL_1)."""
    official = {label: number for number, label in enumerate(task.labels)}
    if (
        label2id is None
        or not task.labels
        or all(re.fullmatch(r"(label_)?\d+", str(key).lower()) for key in label2id)
    ):
        return official
    named = {plain_name(str(key)): int(value) for key, value in label2id.items()}
    if set(named) != {plain_name(label) for label in task.labels}:
        raise ConfigError(
            f"label2id names {', '.join(map(str, label2id))}, but the labels of {task.title} are "
            f"{', '.join(task.labels)}."
        )
    return {label: named[plain_name(label)] for label in task.labels}
