"""The command line, from a YAML file alone: real runs on a small Hugging Face folder made here."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

OCTUNE = [sys.executable, "-c", "from octune.cli import main; main()"]
WORDS = [
    "good",
    "great",
    "fine",
    "lovely",
    "bad",
    "awful",
    "poor",
    "dull",
    "the",
    "film",
    "was",
    "a",
    "very",
    "plot",
    "and",
]


def run(*arguments: str, cwd: Path, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OCTUNE, *arguments], cwd=cwd, check=check, capture_output=True, text=True, timeout=600, **options
    )


@pytest.fixture
def inside(
    project: Path, monkeypatch: pytest.MonkeyPatch, octune_command: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    """The command, run in the folder of the project."""
    monkeypatch.chdir(project)
    return octune_command


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that knows good from bad, its tokenizer, and SST-2 files to match."""
    folder = tmp_path_factory.mktemp("project")
    rng = np.random.default_rng(0)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    data = folder / "SST-2"
    data.mkdir()
    rows: dict[str, list[tuple[str, int]]] = {}
    for split, count in (("train", 256), ("dev", 200)):
        rows[split] = []
        for _ in range(count):
            label = int(rng.integers(2))
            words = [*rng.choice(WORDS[8:], 5), *rng.choice(WORDS[:4] if label else WORDS[4:8], 2)]
            rows[split].append((" ".join(rng.permutation(words)), label))
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows[split])]
        (data / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    for _ in range(20):
        batch = [rows["train"][i] for i in rng.integers(0, 256, 64)]
        inputs = tokenizer([text for text, _ in batch], return_tensors="pt", padding=True)
        loss = model(**inputs, labels=torch.tensor([label for _, label in batch])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    np.savez(
        folder / "data.npz",
        **{
            key: np.asarray(value)
            for key, value in tokenizer(
                [t for t, _ in rows["dev"]], return_tensors="np", padding=True
            ).items()
        },
        label=np.asarray([label for _, label in rows["dev"]]),
    )
    (folder / "mine.py").write_text(
        "import numpy as np, time, os\n"
        "from transformers import BertForSequenceClassification\n"
        "def build():\n    return BertForSequenceClassification.from_pretrained('model')\n"
        "def arrays():\n    data = np.load('data.npz')\n"
        "    names = ('input_ids', 'attention_mask')\n"
        "    return [({n: data[n][i:i+20] for n in names}, data['label'][i:i+20]) for i in range(0, 200, "
        "20)]\n"
        "def right(predictions, labels):\n    return (predictions.argmax(1) == labels).astype(float)\n"
        "def slow(predictions, labels):\n"
        "    open('calls.txt', 'a').write(f'{os.getpid()}\\n')\n"
        "    time.sleep(float(os.environ.get('SLOW', '0')))\n"
        "    return (predictions.argmax(1) == labels).astype(float)\n"
    )
    return folder


def write(project: Path, name: str, **sections: Any) -> Path:
    base = {
        "model": {"path": "model"},
        "calibration": {"data": {"task": "sst-2", "folder": "SST-2"}},
        "evaluation": {"data": {"task": "sst-2", "folder": "SST-2"}},
        "performance": {"compile": "never", "iterations": 3},
        # int8 is always smaller; on a model this small it need not be faster
        "tuning": {"objective": "modelsize"},
    }
    path = project / name
    path.write_text(yaml.safe_dump({**base, **sections}))
    return path


def test_a_task_folder_drives_a_whole_run(project: Path) -> None:
    before = write(project, "task.yaml").read_bytes()
    done = run("tune", "task.yaml", "--workspace", "ws-task", "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["met"] is True
    assert report["best"]["form"] == "eager"
    assert report["best"]["size"] < 0.5 * report["baseline"]["size"]
    assert report["baseline"]["score"]["value"] > 0.9
    assert (project / "task.yaml").read_bytes() == before
    code = "import octune; m = octune.load('ws-task/model'); print(type(m).__name__)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "BertForSequenceClassification"


def test_analyze_needs_no_evaluation_data(project: Path, inside: Any) -> None:
    write(project, "look.yaml", evaluation={})
    code, output, errors = inside("analyze", "look.yaml", "--json", "--output", "look.json")
    assert code == 0, errors
    report = json.loads(output)
    assert report == json.loads((project / "look.json").read_text())
    assert {op["name"] for op in report["ops"]} == set(report["start"])
    assert 0 < report["start_harm"] < 0.1


@pytest.mark.parametrize(
    ("model", "data", "metric"),
    [
        ("mine:build", "mine:arrays", "mine:right"),
        ("model", "data.npz", "accuracy"),
        ("mine:build", "data.npz", "f1"),
    ],
)
def test_factories_arrays_and_functions(
    project: Path, inside: Any, model: str, data: str, metric: str
) -> None:
    name = f"{model}-{data}-{metric}.yaml".replace(":", "_")
    write(
        project,
        name,
        model={"path": model},
        calibration={"data": data},
        evaluation={"data": data, "metric": metric},
    )
    code, output, errors = inside("tune", name, "--workspace", f"ws-{name}", "--quiet")
    assert code == 0, errors
    assert output.startswith("met: ")
    assert len(output.splitlines()) == 1


def test_exit_code_1_when_the_criterion_is_not_met(project: Path, inside: Any) -> None:
    write(
        project, "gain.yaml", criterion={"absolute": -2.0}, tuning={"max_trials": 1, "objective": "modelsize"}
    )
    code, output, errors = inside("tune", "gain.yaml", "--workspace", "ws-gain")
    assert code == 1, errors
    assert "NOT met" in output
    assert "max_trials" in output


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"tuning": {"timeot": 3}}, ["line", "timeot", "timeout"]),
        ({"model": {"path": "nowhere/at/all"}}, ["nowhere/at/all"]),
        ({"model": {"path": "mine:nothing"}}, ["mine:nothing", "nothing"]),
        ({"model": {"path": "model.onnx"}}, ["onnx"]),
        ({"evaluation": {"data": {"task": "sst-2", "folder": "nowhere"}}}, ["nowhere"]),
        ({"evaluation": {"data": "data.npz", "metric": "acuracy"}}, ["acuracy", "accuracy"]),
        ({"quantization": {"ops": {"no.such.op": {"weight": {"dtype": "fp32"}}}}}, ["no.such.op"]),
        ({"quantization": {"activation": {"scheme": "sym"}}}, ["asym"]),
        ({"tuning": {"strategy": "exhaustiv"}}, ["exhaustiv", "exhaustive"]),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    project: Path, inside: Any, sections: dict[str, Any], words: list[str]
) -> None:
    write(project, "bad.yaml", **sections)
    code, output, errors = inside("tune", "bad.yaml", "--workspace", "ws-bad")
    assert code == 2, output + errors
    assert "error: " in errors
    assert "Traceback" not in errors
    assert all(word in errors for word in words), errors


def test_ops_can_be_kept_by_name(project: Path, inside: Any) -> None:
    write(
        project,
        "ops.yaml",
        quantization={
            "ops": {
                "classifier": {"weight": {"dtype": "fp32"}},
                "bert\\.pooler\\..*": {"activation": {"dtype": "fp32"}},
            }
        },
    )
    code, output, errors = inside("tune", "ops.yaml", "--workspace", "ws-ops", "--json")
    assert code == 0, errors
    plan = json.loads(output)["plan"]
    assert plan["classifier"] == {"dtype": "fp32"}
    assert plan["bert.pooler.dense"] == {"dtype": "fp32"}
    assert plan["bert.encoder.layer.0.output.dense"]["dtype"] == "int8"


def test_killed_and_resumed_it_ends_with_the_same_winner(project: Path, inside: Any) -> None:
    sections: dict[str, Any] = {
        "evaluation": {"data": "data.npz", "metric": "mine:slow"},
        "calibration": {"data": "data.npz"},
        "criterion": {"absolute": -2.0},  # cannot be met, so that the search goes on
        "tuning": {"max_trials": 3, "objective": "modelsize"},
    }
    write(project, "slow.yaml", **sections)
    code, whole, errors = inside("tune", "slow.yaml", "--workspace", "ws-whole", "--json")
    assert code == 1, errors
    process = subprocess.Popen(
        [*OCTUNE, "tune", "slow.yaml", "--workspace", "ws-killed"],
        cwd=project,
        env={**os.environ, "SLOW": "2"},
        stdout=subprocess.DEVNULL,
    )
    journal = project / "ws-killed" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        journal.exists() and journal.read_text().count('"event": "trial"') >= 1
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = journal.read_text().count('"event": "trial"')
    (project / "calls.txt").unlink()
    resumed = run("resume", "ws-killed", "--json", cwd=project)
    assert resumed.returncode == 1, resumed.stderr
    assert json.loads(resumed.stdout)["best"]["plan_digest"] == json.loads(whole)["best"]["plan_digest"]
    # Each process rehearses on a first batch: the one that resumes, and that for the question cut off.
    calls = (project / "calls.txt").read_text().split()
    assert len(set(calls)) <= 2
    assert len(calls) == len(set(calls)) + 3 - finished


def test_ctrl_c_saves_no_model_and_says_how_to_go_on(project: Path) -> None:
    write(
        project,
        "interrupted.yaml",
        evaluation={"data": "data.npz", "metric": "mine:slow"},
        calibration={"data": "data.npz"},
        criterion={"absolute": -2.0},
    )
    process = subprocess.Popen(
        [*OCTUNE, "tune", "interrupted.yaml", "--workspace", "ws-int", "--json"],
        cwd=project, env={**os.environ, "SLOW": "2"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    journal = project / "ws-int" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        journal.exists() and journal.read_text().count('"event": "trial"') >= 1
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    report = json.loads(output)
    assert "interrupted" in report["stopped_because"]
    assert report["saved_to"] is None
    # The trial is in the journal a moment before it is counted.
    assert re.search(r"Interrupted after \d trials?; no model is saved\. .*: octune resume ws-int", errors)
    assert not (project / "ws-int" / "model").exists()


@pytest.mark.parametrize(
    ("arguments", "place", "advice"),
    [
        (("tune", "early.yaml", "--workspace", "ws-early"), "octune.tune.tune", "octune resume ws-early"),
        (("analyze", "early.yaml"), "octune.analysis.analyze", "Nothing was kept"),
        (("demo",), "octune.demo.run.run_demo", "What was fetched is kept"),
    ],
)
def test_ctrl_c_before_there_is_anything_to_hand_back(
    project: Path,
    inside: Any,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    place: str,
    advice: str,
) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    module, _, name = place.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, interrupt)
    write(project, "early.yaml")
    code, _, errors = inside(*arguments)
    assert code == 130
    assert "Interrupted before there was anything to hand back" in errors
    assert advice in errors


def test_a_data_folder_that_is_missing_is_said_before_a_model_is_looked_for(inside: Any) -> None:
    code, _, errors = inside(
        "tune", "--task", "cola", "--model", "nobody/nothing", "--data", "no-such-folder"
    )
    assert code == 2
    assert "no-such-folder" in errors
    assert "nobody" not in errors


def test_config_prints_the_effective_configuration_and_the_schema(project: Path, inside: Any) -> None:
    write(project, "shown.yaml")
    assert yaml.safe_load(inside("config", "shown.yaml")[1])["criterion"]["relative"] == 0.01
    assert "properties" in json.loads(inside("config", "--schema")[1])
    assert inside("config")[0] == 2


def test_doctor_and_help(inside: Any) -> None:
    findings = json.loads(inside("doctor", "--json")[1])
    assert findings["speed"]
    assert findings["machine"]["cores"] >= 1
    text = inside("--help")[1]
    assert all(command in text for command in ("tune", "resume", "demo", "doctor", "config"))
