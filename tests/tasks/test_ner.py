"""CoNLL files: columns, layouts, tags by token; and a job from a folder to a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.errors import DataError
from octune.tasks import TaskOptions, load_task
from octune.tasks.ner import load_ner

Write = Callable[[str, str | bytes], Path]
TRAIN = "-DOCSTART- -X- O O\n\na NN O B-PER\nb NN O I-PER\nc NN O O\n\nd NN O B-LOC\n"
DEV = "e NN O B-PER\nabc NN O I-PER\n\nf NN O O\ng NN O B-LOC\n\n"
NAMED = {"O": 0, "B-PER": 1, "I-PER": 2, "B-LOC": 3, "I-LOC": 4}


def test_sentences_words_and_tags(write: Write, tokenizer: Any, tmp_path: Path) -> None:
    write("train.txt", TRAIN)
    write("valid.txt", DEV)
    task = load_task("NER", tmp_path, tokenizer=tokenizer, label2id=NAMED)
    ((inputs, labels),) = list(task.evaluation)
    assert inputs["input_ids"].shape == (2, 4)
    assert sorted(labels) == [["", "B-PER", "I-PER", ""], ["", "O", "B-LOC", ""]]
    assert task.evaluation.about(0)[0]["text"] in ("e abc", "f g")
    assert sum(len(labels) for _, labels in task.calibration) == 2
    assert "2 sentences of valid.txt, calibration on 2 training sentences" in task.description
    perfect = np.eye(5)[[[0, *(NAMED[tag] for tag in row[1:3]), 0] for row in labels]]
    rows = task.metric.predictions({"logits": perfect})
    assert task.metric.score(rows, labels).value == 1.0
    assert task.metric.answers(rows, labels)[0].label in ("B-PER I-PER", "O B-LOC")


def test_a_word_counts_once_and_padding_on_the_left_moves_its_tag(
    write: Write, tokenizer: Any, tmp_path: Path
) -> None:
    write("train.conll", "a\tO\n")
    write("dev.conll", "# sent_id = 1\textra\tcolumns\na-b\tB-PER\nc\tO\n\nd\tO\n")
    ((_, labels),) = list(load_ner(tmp_path, tokenizer=tokenizer).evaluation)
    assert sorted(labels) == [["", "B-PER", "", "", "O", ""], ["", "O", ""]]
    from tests.tasks.conftest import make_tokenizer

    ((inputs, labels),) = list(load_ner(tmp_path, tokenizer=make_tokenizer(padding_side="left")).evaluation)
    assert {len(row) for row in labels} == {inputs["input_ids"].shape[1]}
    short = next(row for row in labels if "B-PER" not in row)
    assert short == ["", "", "", "", "O", ""]


@pytest.mark.parametrize(
    ("train", "dev"), [("eng.train", "eng.testa"), ("train.bio", "dev.bio"), ("train.tsv", "validation.tsv")]
)
def test_layouts(write: Write, tokenizer: Any, tmp_path: Path, train: str, dev: str) -> None:
    write(train, TRAIN)
    write(dev, DEV)
    task = load_ner(tmp_path, tokenizer=tokenizer)
    assert dev in task.description
    assert "alphabetical order" in task.description


def test_the_folder_of_the_tokenizer_names_the_classes(write: Write, tmp_path: Path) -> None:
    from tests.tasks.conftest import make_tokenizer

    write("train.txt", TRAIN)
    write("dev.txt", DEV)
    write("model/config.json", json.dumps({"label2id": NAMED}))
    tokenizer = make_tokenizer()
    tokenizer.name_or_path = str(tmp_path / "model")
    assert "classes are those that the model names" in load_ner(tmp_path, tokenizer=tokenizer).description


def test_broken_files_are_refused(write: Write, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no dev.txt \(nor .conll"):
        load_ner(tmp_path, tokenizer=tokenizer)
    write("train.txt", TRAIN)
    broken = write("dev.txt", "a B-PER\nb\n")
    with pytest.raises(DataError, match=r"dev.txt, line 2 has 1 columns. Expected 2"):
        load_ner(tmp_path, tokenizer=tokenizer)
    broken.write_text(DEV)
    with pytest.raises(DataError, match="types LOC, PER, and the model knows GPE"):
        load_ner(tmp_path, tokenizer=tokenizer, options=TaskOptions(label2id={"O": 0, "B-GPE": 1}))
    with pytest.raises(DataError, match="cannot be evaluated on the split 'train'"):
        load_ner(tmp_path, tokenizer=tokenizer, options=TaskOptions(split="train"))
    broken.write_text("\n")
    with pytest.raises(DataError, match="holds no sentences"):
        load_ner(tmp_path, tokenizer=tokenizer)
