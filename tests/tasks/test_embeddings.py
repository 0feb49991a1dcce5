"""Pairs of sentences, and the layout of BEIR."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.errors import ConfigError, DataError
from octune.tasks import load_task

Write = Callable[[str, str | bytes], Path]
HEADER = "sentence1\tsentence2\tscore\n"


def test_pairs_are_run_apart_and_stay_together(write: Write, tokenizer: Any, tmp_path: Path) -> None:
    write("STS-B/train.tsv", HEADER + "a b\tc\t3.0\n")
    write("STS-B/dev.tsv", HEADER + "a\ta b c\t5.0\nb\tc\t0.0\na\td e\t2.5\n")
    task = load_task("sts", tmp_path, tokenizer=tokenizer, evaluation_batch_size=2)
    batches = list(task.evaluation)
    assert [sorted(labels // 2) for _, labels in batches] == [
        [pair] * 2 for pair in (labels[0] // 2 for _, labels in batches)
    ]
    assert task.metric.name == "spearman_cosine"
    assert sum(len(labels) for _, labels in task.calibration) == 2
    width = np.eye(8, dtype=np.float32)
    vectors = {0: width[0], 1: width[0], 2: width[1], 3: width[2], 4: width[3], 5: width[3] + width[4]}
    order = [int(row) for _, labels in batches for row in labels]
    rows = task.metric.predictions({"embedding": np.stack([vectors[row] for row in order])})
    assert task.metric.score(rows, order).value == pytest.approx(1.0)
    assert "the mean of all tokens" in task.description


def test_the_pooling_of_the_model_is_used(write: Write, tokenizer: Any, tmp_path: Path) -> None:
    write("dev.tsv", HEADER + "a\tb\t5.0\nb\tc\t0.0\n")
    write("model/1_Pooling/config.json", json.dumps({"pooling_mode_cls_token": True}))
    before, tokenizer.name_or_path = tokenizer.name_or_path, str(tmp_path / "model")
    try:
        assert "pooling: cls" in load_task("sts", tmp_path, tokenizer=tokenizer, calibrates=False).description
        write("model/1_Pooling/config.json", json.dumps({"pooling_mode_lasttoken": True}))
        with pytest.raises(ConfigError, match="pooling that is not known"):
            load_task("sts", tmp_path, tokenizer=tokenizer, calibrates=False)
    finally:
        tokenizer.name_or_path = before


def beir(write: Write) -> None:
    documents = [("d1", "T", "a b"), ("d2", "", "c"), ("d3", None, "d e f"), ("d4", "", "g")]
    write(
        "corpus.jsonl",
        "".join(json.dumps({"_id": n, "title": t, "text": text}) + "\n" for n, t, text in documents),
    )
    write("queries.jsonl", "".join(json.dumps({"_id": n, "text": n}) + "\n" for n in ("q1", "q2", "q3")))
    write("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n")


def test_a_folder_in_the_layout_of_beir(write: Write, tokenizer: Any, tmp_path: Path) -> None:
    beir(write)
    task = load_task("retrieval", tmp_path, tokenizer=tokenizer)
    texts = {row["row"]: row["text"] for n in range(len(task.evaluation)) for row in task.evaluation.about(n)}
    assert [texts[row] for row in range(6)] == ["q1", "q2", "T a b", "c", "d e f", "g"]
    assert "NDCG@10 of 2 queries over 4 documents, calibration on 3 other texts" in task.description
    right = np.eye(6, dtype=np.float32)
    right[0, 2] = right[1, 3] = 1.0
    rows = task.metric.predictions({"embedding": right})
    score = task.metric.score(rows, range(6))
    assert (score.value, score.n) == (1.0, 2)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("corpus.jsonl", '{"_id": "d1"}\n', "line 1 has no _id or no text"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq9\td1\t1\n", "names the query 'q9'"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\tno\n", "score is 'no'"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n", "judges no document relevant"),
    ],
)
def test_broken_folders_are_refused(
    write: Write, tokenizer: Any, tmp_path: Path, file: str, content: str, message: str
) -> None:
    beir(write)
    write(file, content)
    with pytest.raises(DataError, match=message):
        load_task("retrieval", tmp_path, tokenizer=tokenizer)


def test_a_missing_file_is_named(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"corpus.jsonl cannot be read"):
        load_task("retrieval", tmp_path, tokenizer=tokenizer)
