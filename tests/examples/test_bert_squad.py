"""The TensorFlow example: its graph is the model that PyTorch runs, its scripts prepare what it needs, its
modes do as they say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.errors import ModelError
from octune.evaluation import SquadF1
from tests import zoo
from tests.examples.load import EXAMPLES, load_example

tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

HERE = EXAMPLES / "tensorflow/bert_squad"
model, records = (load_example(f"tensorflow/bert_squad/{name}.py") for name in ("model", "records"))
LENGTH = 48


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.squad(tmp_path_factory.mktemp("squad"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    return zoo.reader(tmp_path_factory.mktemp("reader"), data)


def span_logits(folder: Path, window: Any) -> tuple[np.ndarray, np.ndarray]:
    from transformers import AutoModelForQuestionAnswering

    network = AutoModelForQuestionAnswering.from_pretrained(str(folder), dtype=torch.float32).eval()
    with torch.inference_mode():
        out = network(**{name: torch.as_tensor(array).long()[None] for name, array in window.tokens.items()})
    return out.start_logits[0].numpy(), out.end_logits[0].numpy()


def check_against_pytorch(folder: Path, file: Path, record: Path, length: int, questions: int) -> None:
    windows = records.squad_windows(
        file, records.load_tokenizer(folder), questions=questions, max_seq_length=length, doc_stride=16
    )
    assert records.make_tfrecord(windows.windows, record, length) == len(windows.windows)
    graph = model.squad_graph(folder, length)
    results, _ = records.run_graph(graph, record, batch_size=3)
    assert [row.unique_id for row in results] == [
        1_000_000_000 + number for number in range(len(windows.windows))
    ]
    for row, window in zip(results[:4], windows.windows, strict=False):
        for ours, theirs in zip((row.start_logits, row.end_logits), span_logits(folder, window), strict=True):
            np.testing.assert_allclose(ours[: len(window)], theirs, atol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_the_graph_gives_the_logits_of_the_pytorch_model(tmp_path: Path, data: Path, activation: str) -> None:
    from transformers import BertForQuestionAnswering

    torch.manual_seed(1)
    zoo.tokenizer(tmp_path)
    BertForQuestionAnswering(zoo._config(hidden_act=activation)).save_pretrained(tmp_path)
    check_against_pytorch(tmp_path, data / "dev-v1.1.json", tmp_path / "r.tf_record", LENGTH, questions=7)


@pytest.mark.shared
@pytest.mark.slow
def test_the_graph_gives_the_logits_of_the_real_model(shared: Path, tmp_path: Path) -> None:
    folder = shared / "models/minilm-l6-squad"
    check_against_pytorch(
        folder, shared / "data/squad/dev-v1.1.json", tmp_path / "r.tf_record", 384, questions=4
    )


@pytest.mark.parametrize("task", ["sst-2", "sts-b"])
def test_the_classifier_gives_the_logits_of_the_pytorch_model(tmp_path: Path, task: str) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = zoo.classifier(tmp_path / "model", task, zoo.glue(tmp_path, task))
    network = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    rng = np.random.default_rng(0)
    ids, mask, segments = rng.integers(5, 100, (3, 20)), np.ones((3, 20), int), np.zeros((3, 20), int)
    mask[1, 12:], segments[2, 9:] = 0, 1
    with torch.inference_mode():
        theirs = network(
            torch.as_tensor(ids), torch.as_tensor(mask), torch.as_tensor(segments)
        ).logits.numpy()
    with tf.compat.v1.Session(graph=model.classifier_graph(folder)) as session:
        ours = session.run("logits:0", {"input_ids:0": ids, "input_mask:0": mask, "segment_ids:0": segments})
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_names_are_those_of_google_research(checkpoint: Path) -> None:
    graph = model.squad_graph(checkpoint, LENGTH)
    matmuls = {op.name for op in graph.get_operations() if op.type == "MatMul"}
    layers = {
        f"bert/encoder/layer_{layer}/{part}/MatMul"
        for layer in (0, 1)
        for part in (
            "attention/self/query",
            "attention/self/key",
            "attention/self/value",
            "attention/output/dense",
        )
    } | {
        f"bert/encoder/layer_{layer}/{part}/dense/MatMul"
        for layer in (0, 1)
        for part in ("intermediate", "output")
    }
    assert matmuls == layers | {"bert/embeddings/MatMul", "MatMul"}
    assert {"input_file", "batch_size", "MakeIterator", "IteratorGetNext", "unstack"} <= {
        op.name for op in graph.get_operations()
    }
    assert not [op.name for op in graph.get_operations() if "Variable" in op.type]


def as_google(folder: Path, target: Path, **changed: Any) -> Path:
    """The same model as a TensorFlow 1 checkpoint, with the optimizer's variables that a training run leaves
    in it.
    """
    _, weights = model.read_checkpoint(folder)
    target.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in weights.items():
            tf.compat.v1.get_variable(name, initializer=value)
        tf.compat.v1.get_variable("bert/pooler/dense/kernel/adam_m", initializer=np.zeros(3, np.float32))
        tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(target / "model.ckpt"), global_step=7)
    config = json.loads((folder / "config.json").read_text()) | changed
    (target / "bert_config.json").write_text(json.dumps(config))
    (target / "vocab.txt").write_text((folder / "vocab.txt").read_text())
    return target


def test_a_google_research_checkpoint_gives_the_same_graph(tmp_path: Path, data: Path) -> None:
    """google-research's "gelu" is the tanh form, which Hugging Face calls gelu_new."""
    folder = zoo.reader(tmp_path / "hugging_face", data, hidden_act="gelu_new")
    google = as_google(folder, tmp_path / "uncased", hidden_act="gelu")
    definitions = [model.squad_graph(source, LENGTH).as_graph_def() for source in (folder, google)]
    constants = [
        {n.name: n.attr["value"].tensor.tensor_content for n in d.node if n.op == "Const"}
        for d in definitions
    ]
    assert constants[0] == constants[1]
    assert [n.name for n in definitions[0].node] == [n.name for n in definitions[1].node]
    texts = ("where is he?", "he lived in Vienna.")
    assert (
        records.load_tokenizer(google)(*texts)["input_ids"]
        == records.load_tokenizer(folder)(*texts)["input_ids"]
    )


def test_the_trained_reader_answers(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    windows = records.squad_windows(
        data / "dev-v1.1.json", records.load_tokenizer(checkpoint), max_seq_length=LENGTH, doc_stride=16
    )
    records.make_tfrecord(windows.windows, tmp_path / "r", LENGTH)
    results, seconds = records.run_graph(model.squad_graph(checkpoint, LENGTH), tmp_path / "r", batch_size=40)
    assert len(seconds) == 3
    assert SquadF1(windows).score(*records.by_window(results)).value > 95
    assert (
        len(
            records.run_graph(
                model.squad_graph(checkpoint, LENGTH), tmp_path / "r", batch_size=8, iteration=2
            )[0]
        )
        == 16
    )


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(ModelError, match=r"Expected bert_config\.json"):
        model.squad_graph(tmp_path)
    (tmp_path / "bert_config.json").write_text((checkpoint / "config.json").read_text())
    with pytest.raises(ModelError, match=r"no TensorFlow checkpoint"):
        model.squad_graph(tmp_path)
    with pytest.raises(ModelError, match=r"no weight 'bert/pooler/dense/kernel'\. Was it fine-tuned"):
        model.classifier_graph(checkpoint)


# -- scripts -------------------------------------------------------------------------------------------------


def script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable] if name.endswith(".py") else ["bash"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [*command, str(HERE / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )


def test_prepare_dataset_checks_what_it_is_given(tmp_path: Path, data: Path) -> None:
    done = script("prepare_dataset.sh", f"--output_dir={tmp_path / 'out'}", "--local", data)
    assert done.returncode == 1
    assert "Expected 95aa6a52" in done.stderr  # a made-up file is not SQuAD
    assert "--output_dir is missing" in script("prepare_dataset.sh").stderr
    assert "unknown argument '--outdir=x'" in script("prepare_dataset.sh", "--outdir=x").stderr


@pytest.mark.shared
def test_prepare_dataset_takes_the_official_file(tmp_path: Path, shared: Path) -> None:
    done = script("prepare_dataset.sh", "--output_dir", tmp_path, "--local", shared / "data/squad")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"dev-v1.1.json", "train-slice-v1.1.json"}


def test_prepare_model_links_a_checkpoint_and_opens_archives(tmp_path: Path, checkpoint: Path) -> None:
    done = script("prepare_model.sh", f"--output_dir={tmp_path / 'linked'}", f"--local={checkpoint}")
    assert done.returncode == 0, done.stderr
    model.squad_graph(tmp_path / "linked", LENGTH)

    google = as_google(checkpoint, tmp_path / "uncased")
    for archive, pattern in (
        ("bert_large_checkpoints.zip", "model.ckpt*"),
        ("wwm_uncased_L-24_H-1024_A-16.zip", "[bv]*"),
    ):
        folder = tmp_path / "archives" / archive.removesuffix(".zip")
        folder.mkdir(parents=True)
        for file in google.glob(pattern):
            (folder / file.name).write_bytes(file.read_bytes())
        subprocess.run([sys.executable, "-m", "zipfile", "-c", f"{folder}.zip", str(folder)], check=True)
    done = script(
        "prepare_model.sh", f"--output_dir={tmp_path / 'model'}", f"--local={tmp_path / 'archives'}"
    )
    assert done.returncode == 0, done.stderr
    model.squad_graph(tmp_path / "model", LENGTH)
    assert (
        "neither bert_large_checkpoints.zip"
        in script("prepare_model.sh", f"--output_dir={tmp_path / 'x'}", f"--local={tmp_path}").stderr
    )


@pytest.mark.slow
def test_tune_accuracy_and_benchmark_modes(
    checkpoint: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ("--model_dir", checkpoint, "--data_dir", data, "--max_seq_length=48", "--doc_stride=16")
    done = script("tune_squad.py", *common, f"--output_model={tmp_path}/result")
    assert done.returncode == 0, done.stderr
    assert "criterion met" in done.stdout
    done = script("tune_squad.py", *common, "--mode=accuracy", f"--input_model={tmp_path}/result")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.partition("F1: ")[2].split()[0]) > 95
    # In this process: TensorFlow is loaded here already.
    monkeypatch.setitem(sys.modules, "model", model)
    monkeypatch.setitem(sys.modules, "records", records)
    options = ("--mode=benchmark", "--batch_size=4", "--iteration=8")
    monkeypatch.setattr(sys, "argv", ["tune_squad.py", *map(str, common), *options])
    load_example("tensorflow/bert_squad/tune_squad.py").main()
    printed = capsys.readouterr().out
    assert "batches timed after a warm-up of 5: 3" in printed
    assert "Batch size is 4" in printed
