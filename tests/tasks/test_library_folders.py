"""Folders that a data set library wrote: Arrow files of ``save_to_disk``, its cache, and Parquet files of the
hub.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octune.errors import DataError
from octune.tasks import load_task
from octune.tasks.squad import read_squad

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_arrow(rows: list[dict[str, Any]], file: Path) -> None:
    """The streaming format, which is what the library writes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def write_parquet(rows: list[dict[str, Any]], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)


LAYOUTS: dict[str, tuple[Callable[[list[dict[str, Any]], Path], None], str]] = {
    "save_to_disk": (write_arrow, "{split}/data-00000-of-00001.arrow"),
    "cache": (write_arrow, "glue-{split}.arrow"),
    "hub": (write_parquet, "{split}-00000-of-00001.parquet"),
    "hub, in data": (write_parquet, "data/{split}-00000-of-00001.parquet"),
}
COLA = [
    {"sentence": 'he said "a b', "label": 1, "idx": 0},
    {"sentence": "c\td", "label": 0, "idx": 1},
    {"sentence": "e", "label": 1, "idx": 2},
]
MNLI = [{"premise": "a", "hypothesis": "b", "label": label, "idx": label} for label in (0, 1, 2)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_glue(tmp_path: Path, tokenizer: Any, layout: str) -> None:
    write, name = LAYOUTS[layout]
    write(COLA[:1], tmp_path / "cola" / name.format(split="train"))
    write(COLA, tmp_path / "cola" / name.format(split="validation"))
    # The test split has no labels: it must not be read.
    write([{"sentence": "x", "label": -1, "idx": 0}], tmp_path / "cola" / name.format(split="test"))
    for folder in (tmp_path, tmp_path / "cola"):
        task = load_task("CoLA", folder, tokenizer=tokenizer)
        labels = [label for _, batch in task.evaluation for label in batch.tolist()]
        assert sorted(labels) == [0, 1, 1]
        assert task.metric.name == "mcc"


def test_mnli_has_two_development_sets(tmp_path: Path, tokenizer: Any) -> None:
    write, name = LAYOUTS["save_to_disk"]
    for split, rows in (
        ("train", MNLI),
        ("validation_matched", MNLI[:2]),
        ("validation_mismatched", MNLI[2:]),
    ):
        write(rows, tmp_path / name.format(split=split))
    found = [load_task(task, tmp_path, tokenizer=tokenizer).evaluation for task in ("mnli", "mnli-mm")]
    assert [sorted(label for _, batch in batches for label in batch.tolist()) for batches in found] == [
        [0, 1],
        [2],
    ]


QUESTIONS = [
    {
        "id": str(n),
        "title": "t",
        "context": "a b c",
        "question": "a ?",
        "answers": {"text": texts, "answer_start": [2] * len(texts)},
    }
    for n, texts in enumerate([["b"], ["b", "b c"], ["c"]])
]


@pytest.mark.parametrize("layout", ["save_to_disk", "hub"])
def test_squad(tmp_path: Path, tokenizer: Any, layout: str) -> None:
    write, name = LAYOUTS[layout]
    place = tmp_path / "plain_text" if layout == "hub" else tmp_path
    write(QUESTIONS[:1], place / name.format(split="train"))
    write(QUESTIONS[1:], place / name.format(split="validation"))
    task = load_task("squad", tmp_path, tokenizer=tokenizer)
    assert "F1 on 2 questions" in task.description
    assert len(list(task.evaluation)) == 1
    [batch] = list(task.calibration)
    assert batch[1].tolist() == [-1]


def test_squad_in_parts_and_without_answers(tmp_path: Path) -> None:
    for part, rows in enumerate((QUESTIONS[:2], QUESTIONS[2:])):
        write_parquet(rows, tmp_path / f"validation-0000{part}-of-00002.parquet")
    questions = read_squad(tmp_path / "validation-00000-of-00002.parquet")
    assert [question.answers for question in questions] == [("b",), ("b", "b c"), ("c",)]
    write_arrow(
        [{**QUESTIONS[0], "answers": {"text": ["x"][:0], "answer_start": [1][:0]}}, QUESTIONS[1]],
        tmp_path / "x.arrow",
    )
    assert [bool(question.answers) for question in read_squad(tmp_path / "x.arrow", "v2.0")] == [False, True]
    with pytest.raises(DataError, match=r"has no answer. Expected one in v1\.1"):
        read_squad(tmp_path / "x.arrow")


def test_a_file_that_is_not_arrow_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"x\.arrow cannot be read as a \.arrow file"):
        read_squad(tmp_path / "x.arrow")
