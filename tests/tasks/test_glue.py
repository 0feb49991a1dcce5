"""GLUE: each task's own file format, labels and metric; and the published scores on the real development
sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.errors import ConfigError, DataError
from octune.sources import make_metric
from octune.tasks import TaskData, TaskOptions, glue_metric, load_glue
from octune.tasks.glue import GLUE

Write = Callable[[str, str | bytes], Path]

MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
PARSES = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
MNLI_HEADER = f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence1\tsentence2\t"
STSB_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
TRAIN = "sentence\tlabel\na\t1\n"
QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"

# name -> folder, training file, (development file, its content), the labels to be found in it
OFFICIAL: dict[str, tuple[str, str, tuple[str, str], list[float]]] = {
    "CoLA": ("CoLA", "gj04\t1\t\ta b\n", ("dev.tsv", 'gj04\t1\t\t"a b\nbc88\t0\t*\tc\n'), [1, 0]),
    "sst-2": ("SST-2", "sentence\tlabel\na \t1\n", ("dev.tsv", "sentence\tlabel\na b \t1\nc\t0\n"), [1, 0]),
    "MRPC": (
        "MRPC",
        MRPC_HEADER + "1\t3\t4\ta\tb\n",
        ("dev.tsv", "\ufeff" + MRPC_HEADER + '1\t1\t2\t"a b\tc\n0\t5\t6\td\te\n'),
        [1, 0],
    ),
    "STS-B": (
        "STS-B",
        STSB_HEADER + "0\tg\tf\ty\t1\tn\tn\ta\tb\t5.000\n",
        ("dev.tsv", STSB_HEADER + "0\tg\tf\ty\t1\tn\tn\ta\tb\t3.250\n1\tg\tf\ty\t1\tn\tn\ta b c\td\t0.000\n"),
        [3.25, 0.0],
    ),
    "qqp": (
        "QQP",
        QQP_HEADER + "1\t2\t3\ta\tb\t1\n",
        ("dev.tsv", QQP_HEADER + "1\t2\t3\ta\tb\t1\n4\t5\t6\tc d\te\t0\n"),
        [1, 0],
    ),
    "mnli": (
        "MNLI",
        MNLI_HEADER + "label1\tgold_label\n0\tp\tq\tg\tx\tx\tx\tx\ta\tb\tneutral\tneutral\n",
        (
            "dev_matched.tsv",
            MNLI_HEADER
            + "label1\tlabel2\tgold_label\n0\tp\tq\tg\tx\tx\tx\tx\ta\tb\tneutral\tneutral\tcontradiction\n"
            "1\tp\tq\tg\tx\tx\tx\tx\ta b c\tb\tneutral\tneutral\tentailment\n",
        ),
        [2, 0],
    ),
    "MNLI-mm": (
        "MNLI",
        MNLI_HEADER + "label1\tgold_label\n0\tp\tq\tg\tx\tx\tx\tx\ta\tb\tneutral\tneutral\n",
        (
            "dev_mismatched.tsv",
            MNLI_HEADER + "label1\tgold_label\n0\tp\tq\tg\tx\tx\tx\tx\ta\tb\tneutral\tneutral\n",
        ),
        [1],
    ),
    "QNLI": (
        "QNLI",
        "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n",
        ("dev.tsv", "index\tquestion\tsentence\tlabel\n0\ta\tb\tnot_entailment\n1\ta b\tc d\tentailment\n"),
        [1, 0],
    ),
    "rte": (
        "RTE",
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
        ("dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta b\tc d\tnot_entailment\n"),
        [0, 1],
    ),
    "wnli": (
        "WNLI",
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n",
        ("dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n1\ta b\tc d\t0\n"),
        [1, 0],
    ),
}


def labels_of(task: TaskData) -> list[float]:
    """Labels by rising length, which is the order of the rows in these tests' files."""
    batches = list(task.evaluation)
    lengths = np.concatenate([inputs["attention_mask"].sum(axis=1) for inputs, _ in batches])
    return list(np.concatenate([labels for _, labels in batches])[np.argsort(lengths)])


@pytest.fixture
def sst2(write: Write, tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, count in (("train", 30), ("dev", 25)):
        rows = (
            f"{' '.join(rng.choice(list('abcdef'), rng.integers(1, 12)))}\t{rng.integers(2)}\n"
            for _ in range(count)
        )
        write(f"SST-2/{name}.tsv", "sentence\tlabel\n" + "".join(rows))
    return tmp_path


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("from_root", [True, False])
def test_official_files(write: Write, tmp_path: Path, tokenizer: Any, name: str, from_root: bool) -> None:
    folder, train, (dev_name, dev), labels = OFFICIAL[name]
    write(f"{folder}/train.tsv", train)
    write(f"{folder}/{dev_name}", dev)
    task = load_glue(
        name,
        tmp_path if from_root else tmp_path / folder,
        tokenizer=tokenizer,
        options=TaskOptions(evaluation_batch_size=1),
    )
    if name in ("CoLA", "sst-2", "MRPC"):
        labels = labels[::-1]  # the second row is the shorter one
    assert labels_of(task) == labels
    assert len(list(task.calibration)) == 1
    assert dev_name in task.description


def test_metrics_are_the_tasks_own() -> None:
    primary = {"cola": "mcc", "mrpc": "f1", "stsb": "spearmanr", "qqp": "f1"}
    assert {name: glue_metric(name).name for name in GLUE} == {
        name: primary.get(name, "accuracy") for name in GLUE
    }


def test_first_sentence_comes_first(write: Write, tmp_path: Path, tokenizer: Any) -> None:
    write("train.tsv", "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n")
    write("dev.tsv", "index\tquestion\tsentence\tlabel\n0\tq\ts t\tentailment\n")
    inputs, _ = next(iter(load_glue("qnli", tmp_path, tokenizer=tokenizer).evaluation))
    assert tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist()) == [
        "[CLS]",
        "q",
        "[SEP]",
        "s",
        "t",
        "[SEP]",
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_folders_of_data_set_libraries(write: Write, tmp_path: Path, tokenizer: Any, suffix: str) -> None:
    rows = [
        {"premise": "a", "hypothesis": "b, c", "label": 2, "idx": 0},
        {"premise": "a b c d e", "hypothesis": "f", "label": 0, "idx": 1},
    ]
    if suffix == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = 'premise,hypothesis,label,idx\na,"b, c",2,0\na b c d e,f,0,1\n'
    write(f"mnli/train.{suffix}", text)
    write(f"mnli/validation_matched.{suffix}", text)
    assert labels_of(load_glue("mnli", tmp_path, tokenizer=tokenizer)) == [2, 0]


def test_cola_with_a_header_of_someone_else(write: Write, tmp_path: Path, tokenizer: Any) -> None:
    write("train.tsv", "sentence\tlabel\na\t1\n")
    write("dev.tsv", "sentence\tlabel\na\t1\n")
    assert labels_of(load_glue("cola", tmp_path, tokenizer=tokenizer)) == [1]


def test_mrpc_as_microsoft_ships_it(write: Write, tmp_path: Path, tokenizer: Any) -> None:
    header = "\ufeff" + MRPC_HEADER.replace("\n", "\r\n")
    write(
        "msr_paraphrase_train.txt", header + '1\t11\t12\t"a\tb\r\n0\t21\t22\tc d e\tf\r\n0\t31\t32\tg\th\r\n'
    )
    write("msr_paraphrase_test.txt", header + "1\t41\t42\ta\tb\r\n")
    task = load_glue("mrpc", tmp_path, tokenizer=tokenizer)
    assert labels_of(task) == [1]
    assert "msr_paraphrase_test.txt" in task.description
    write("dev_ids.tsv", "21\t22\n")
    task = load_glue("mrpc", tmp_path, tokenizer=tokenizer)
    assert labels_of(task) == [0]
    assert sum(len(labels) for _, labels in task.calibration) == 2


def test_qqp_is_published_with_broken_rows(write: Write, tmp_path: Path, tokenizer: Any) -> None:
    good = "1\t2\t3\ta\tb\t1\n"
    write("train.tsv", QQP_HEADER + good + '"\tWas it?\t0\n' + good)
    write("dev.tsv", QQP_HEADER + good)
    assert sum(len(labels) for _, labels in load_glue("qqp", tmp_path, tokenizer=tokenizer).calibration) == 2
    write("train.tsv", QQP_HEADER + good + "broken\n" * 3)
    with pytest.raises(DataError, match=r"train\.tsv has 3 rows.*first line 3"):
        load_glue("qqp", tmp_path, tokenizer=tokenizer)


def test_label2id_wins(write: Write, tmp_path: Path, tokenizer: Any) -> None:
    _, train, (dev_name, dev), _ = OFFICIAL["mnli"]
    write("train.tsv", train)
    write(dev_name, dev)
    other = {"CONTRADICTION": 0, "Neutral": 1, "entailment": 2}
    assert labels_of(
        load_glue("mnli", tmp_path, tokenizer=tokenizer, options=TaskOptions(label2id=other))
    ) == [0, 2]
    nameless = {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert labels_of(
        load_glue("mnli", tmp_path, tokenizer=tokenizer, options=TaskOptions(label2id=nameless))
    ) == [2, 0]
    with pytest.raises(ConfigError, match=r"label2id names yes, no, but the labels of MNLI are entailment"):
        load_glue("mnli", tmp_path, tokenizer=tokenizer, options=TaskOptions(label2id={"yes": 0, "no": 1}))


def test_batches_can_be_walked_again_and_are_the_same(sst2: Path, tokenizer: Any) -> None:
    task = load_glue("sst2", sst2, tokenizer=tokenizer, options=TaskOptions(evaluation_batch_size=4))
    first, second = list(task.evaluation), list(task.evaluation)
    assert len(task.evaluation) == len(first) == 7
    assert len(task.calibration) == len(list(task.calibration)) == 4
    for (inputs, labels), (again, labels_again) in zip(first, second, strict=True):
        assert inputs.keys() == again.keys() == {"input_ids", "attention_mask", "token_type_ids"}
        np.testing.assert_array_equal(inputs["input_ids"], again["input_ids"])
        np.testing.assert_array_equal(labels, labels_again)
        assert all(array.dtype == np.int64 for array in inputs.values())
        # no column is padding alone
        assert inputs["attention_mask"].sum(axis=1).max() == inputs["input_ids"].shape[1]


def test_writing_into_a_batch_does_not_change_the_next_walk(sst2: Path, tokenizer: Any) -> None:
    task = load_glue("sst2", sst2, tokenizer=tokenizer)
    inputs, labels = next(iter(task.evaluation))
    inputs["input_ids"][:], labels[:] = 99, 99
    again, labels_again = next(iter(task.evaluation))
    assert 99 not in again["input_ids"]
    assert 99 not in labels_again


def test_every_row_is_there_once_with_its_label(sst2: Path, tokenizer: Any) -> None:
    written = [line.split("\t") for line in (sst2 / "SST-2/dev.tsv").read_text().splitlines()[1:]]
    task = load_glue("sst2", sst2, tokenizer=tokenizer, options=TaskOptions(evaluation_batch_size=4))
    found = [
        (tokenizer.decode(row[mask == 1], skip_special_tokens=True), str(label))
        for inputs, labels in task.evaluation
        for row, mask, label in zip(inputs["input_ids"], inputs["attention_mask"], labels, strict=True)
    ]
    assert sorted(found) == sorted((text, label) for text, label in written)


def test_calibration_takes_only_training_rows_and_as_many_as_asked(
    write: Write, tmp_path: Path, tokenizer: Any
) -> None:
    write("train.tsv", "sentence\tlabel\n" + "t\t0\n" * 20)
    write("dev.tsv", "sentence\tlabel\n" + "d\t1\n" * 20)
    task = load_glue(
        "sst2",
        tmp_path,
        tokenizer=tokenizer,
        options=TaskOptions(calibration_samples=10, calibration_batch_size=4),
    )
    t, d = tokenizer.convert_tokens_to_ids(["t", "d"])
    assert [len(labels) for _, labels in task.calibration] == [4, 4, 2]
    assert all((inputs["input_ids"][:, 1] == t).all() for inputs, _ in task.calibration)
    assert all((inputs["input_ids"][:, 1] == d).all() for inputs, _ in task.evaluation)


def test_long_rows_are_cut(write: Write, tmp_path: Path, tokenizer: Any) -> None:
    for name in ("train", "dev"):
        write(f"{name}.tsv", "sentence\tlabel\n" + "a " * 300 + "\t1\n")
    assert next(iter(load_glue("sst2", tmp_path, tokenizer=tokenizer).evaluation))[0]["input_ids"].shape == (
        1,
        128,
    )
    assert next(
        iter(load_glue("sst2", tmp_path, tokenizer=tokenizer, options=TaskOptions(max_length=16)).evaluation)
    )[0]["input_ids"].shape == (1, 16)
    with pytest.raises(ConfigError, match=r"more than the tokenizer's 2 special tokens\. Got 2"):
        load_glue("sst2", tmp_path, tokenizer=tokenizer, options=TaskOptions(max_length=2))


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {}, "holds no data of SST-2"),
        ({"dev.tsv": "sentence\tlabel\na\t1\n"}, {}, r"no train\.tsv.*Calibration rows"),
        ({"train.tsv": TRAIN}, {}, r"no dev\.tsv.*Evaluation rows"),
        ({"train.tsv": TRAIN}, {"split": "train"}, "split 'train': calibration uses it"),
        ({"train.tsv": TRAIN, "dev.tsv": "sentence\tlabel\n"}, {}, r"dev\.tsv holds no rows"),
        (
            {"train.tsv": TRAIN, "dev.tsv": "sentence\tlabel\na\t1\nb\t3\n"},
            {},
            r"dev\.tsv, line 3: the label is '3'.*0 to 1",
        ),
        (
            {"train.tsv": TRAIN, "dev.tsv": "index\tsentence\n0\ta\n"},
            {},
            "does not look like SST-2.*Got index, sentence",
        ),
        (
            {"train.tsv": TRAIN, "dev.jsonl": '{"sentence": null, "label": 1}\n'},
            {},
            "line 1: expected text in sentence",
        ),
    ],
)
def test_what_is_wrong_with_the_folder(
    write: Write, tmp_path: Path, tokenizer: Any, files: dict[str, str], options: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        write(name, content)
    with pytest.raises(DataError, match=message):
        load_glue("sst2", tmp_path, tokenizer=tokenizer, options=TaskOptions(**options))


def test_a_configuration_names_the_metric_of_a_task() -> None:
    assert make_metric("GLUE", {"task": "MRPC"}).name == "f1"
    assert make_metric("topk", {"k": 5}).name == "top5"
    for options in ({}, {"task": "mrpc", "k": 5}):
        with pytest.raises(ConfigError, match=r"The metric GLUE needs the option 'task'.*\{task: mrpc\}"):
            make_metric("GLUE", options)


def test_a_missing_folder_and_an_unknown_task(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_glue("sst2", tmp_path / "nowhere", tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"Unknown GLUE task 'sst3'. Expected one of: CoLA"):
        load_glue("sst3", tmp_path, tokenizer=tokenizer)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows", "calibration"), [("SST-2", 872, 5000), ("MRPC", 408, 3668), ("STS-B", 1500, 5749)]
)
def test_the_published_files_are_read_in_full(shared: Path, name: str, rows: int, calibration: int) -> None:
    pytest.importorskip("transformers")
    from octune.tasks import load_task

    task = load_task(name, shared / "data" / "glue", tokenizer=shared / "models" / "minilm-l6-sst2")
    assert sum(len(labels) for _, labels in task.evaluation) == rows
    assert f"{calibration:,} training rows" in task.description


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "value"),
    [("SST-2", "sst2", 0.8876), ("MRPC", "mrpc", 0.8761), ("STS-B", "stsb", 0.8572)],
)
def test_fp32_scores_of_real_models(shared: Path, name: str, model: str, value: float) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from octune.tasks import load_task

    folder = shared / "models" / f"minilm-l6-{model}"
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    task = load_task(name, shared / "data" / "glue", tokenizer=folder)
    rows: list[Any] = []
    labels: list[Any] = []
    with torch.inference_mode():
        for inputs, truth in task.evaluation:
            outputs = network(**{key: torch.from_numpy(array) for key, array in inputs.items()})
            rows.extend(task.metric.predictions({"logits": outputs.logits.numpy()}))
            labels.extend(truth)
    assert task.metric.score(rows, labels).value == pytest.approx(value, abs=6e-5)
