"""Mistakes on the command line: exit code 2, one message that names the input, what was expected and what to
do, no traceback, and nothing left behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

CODE = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
def broken():
    raise FileNotFoundError("weights.pt")
def number():
    return 5
"""
SECTIONS: dict[str, Any] = {
    "model": {"path": "mistaken:build"},
    "calibration": {"data": "unlabelled.npz"},
    "evaluation": {"data": "data.npz", "metric": "accuracy"},
    "performance": {"compile": "never", "iterations": 1, "warmup": 0},
    "tuning": {"objective": "modelsize"},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that a run needs, and with all kinds of files that it cannot use."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "mistaken.py").write_text(CODE)
    (folder / "good.yaml").write_text(yaml.safe_dump(SECTIONS))
    x, label = np.zeros((40, 8), np.float32), np.arange(40) % 3
    files: dict[str, dict[str, Any]] = {
        "data": {"x": x, "label": label},
        "unlabelled": {"x": x},
        "wrong_names": {"pixels": x, "label": label},
        "wrong_shape": {"x": x[:, :5], "label": label},
        "no_rows": {"x": x[:0], "label": label[:0]},
        "nothing": {},
        "labels_alone": {"label": label},
        "lengths": {"x": x, "label": label[:39]},
        "scalar": {"x": np.float32(3), "label": label},
        "objects": {"x": np.array([{}], dtype=object)},
        "large_labels": {"x": x, "label": label + 5},
        "words": {"x": np.array(["a", "b"]), "label": np.array([0, 1])},
    }
    for name, arrays in files.items():
        np.savez(folder / f"{name}.npz", **arrays)
    for name in ("text.npz", "text.onnx", "text.txt", "text.pt", "text.pt2"):
        (folder / name).write_text("hello")
    (folder / "syntax.yaml").write_text("model: {path: x\ncalibration: [")
    (folder / "list.yaml").write_text("- a\n- b\n")
    (folder / "empty.yaml").write_text("")
    (folder / "filled").mkdir()
    (folder / "filled" / "diary.txt").write_text("mine")
    (folder / "saved").mkdir()
    (folder / "saved" / "octune.json").write_text("{}")
    return folder


@pytest.fixture
def octune(
    project: Path, monkeypatch: pytest.MonkeyPatch, octune_command: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str]]:
    """The command, run in the project: its exit code, and what it said on standard error."""
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments: str) -> tuple[int, str]:
        code, _, errors = octune_command(*arguments)
        return code, errors

    return call


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


# What is wrong with a configuration -> what must be said.
CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "typo": ({"evaluation": {"data": "data.npz", "metrics": "f1"}}, "line .*metrics.*Did you mean 'metric'"),
    "kind": ({"calibration": 5}, "line .*calibration must be a mapping.*Got 5"),
    "criterion": ({"criterion": {"relative": "200%"}}, "line .*criterion.relative must be.*Got '200%'"),
    "metric": (
        {"evaluation": {"data": "data.npz", "metric": "accurracy"}},
        r"Unknown metric 'accurracy'. Did you mean 'accuracy'( or 'acc_and_f1')\?",
    ),
    "metric module": ({"evaluation": {"data": "data.npz", "metric": "no:f"}}, "'no:f' cannot be imported"),
    "no labels": ({"evaluation": {"data": "unlabelled.npz", "metric": "accuracy"}}, "has no label.*Expected"),
    "names": ({"evaluation": {"data": "wrong_names.npz"}}, "Expected input.*'pixels' is none of them"),
    "shape": ({"evaluation": {"data": "wrong_shape.npz"}}, r"float32\[32, 5\].*Expected input"),
    "no rows": ({"evaluation": {"data": "no_rows.npz"}}, "no_rows.npz have no rows. Expected"),
    "no arrays": ({"calibration": {"data": "nothing.npz"}}, "nothing.npz holds no input array. Expected"),
    "no inputs": ({"evaluation": {"data": "labels_alone.npz"}}, "holds no input array. Expected"),
    "lengths": ({"evaluation": {"data": "lengths.npz"}}, "number of rows: x 40, label 39. Expected"),
    "scalar": ({"evaluation": {"data": "scalar.npz"}}, "number of rows: x none, label 40. Expected"),
    "objects": ({"evaluation": {"data": "objects.npz"}}, "objects.npz cannot be read: .*Expected"),
    "words": ({"evaluation": {"data": "words.npz"}}, "tokenize text first"),
    "classes": ({"evaluation": {"data": "large_labels.npz", "metric": "accuracy"}}, "label 5.*Check"),
    "text as data": ({"evaluation": {"data": "text.npz"}}, "text.npz cannot be read and is not an .npz.*Exp"),
    "missing data": ({"evaluation": {"data": "none.npz"}}, "There is no file none.npz. Expected"),
    "number as data": ({"evaluation": {"data": "mistaken:number"}}, "is a int.*Expected an iterable"),
    "failing data": ({"evaluation": {"data": "mistaken:broken"}}, "raised FileNotFoundError.*Expected a"),
    "corrupt onnx": ({"model": {"path": "text.onnx"}}, "text.onnx is not an ONNX model.*Expected.*again"),
    "missing onnx": ({"model": {"path": "none.onnx"}}, "There is no file none.onnx. Expected"),
    "text file": ({"model": {"path": "text.txt"}}, "text.txt is not a model of a known kind.*Expected"),
    "missing weights": ({"model": {"path": "none.pt"}}, "There is no file none.pt. Expected"),
    "pickled weights": ({"model": {"path": "text.pt"}}, "text.pt holds pickled objects.*Expected"),
    "no program": ({"model": {"path": "text.pt2"}}, "text.pt2 is not a program saved by"),
    "missing folder": ({"model": {"path": "filled/none"}}, "no file or folder filled/none. Expected"),
    "nowhere": ({"model": {"path": "models/none"}}, "no folder models/none here, and.*Expected"),
    "other folder": ({"model": {"path": "filled"}}, "filled has no config.json.*It holds.*Expected"),
    "int8 already": ({"model": {"path": "saved"}}, "saved is a model that Octune has saved. Give the fp32"),
    "failing factory": ({"model": {"path": "mistaken:broken"}}, "raised FileNotFoundError.*Expected a"),
    "no such factory": ({"model": {"path": "mistaken:none"}}, "has no attribute 'none'. Expected package"),
    "number as model": ({"model": {"path": "mistaken:number"}}, "is a builtins.int.*Expected one of"),
    "framework": ({"model": {"path": "mistaken:build", "framework": "onnx"}}, "returned a Sequential.*Leave"),
    "no model": ({"model": {}}, "There is no model: give one"),
    "static": ({"calibration": {}, "quantization": {"approach": "static"}}, "is static.*Give calibration="),
    "workspace": ({"workspace": {"path": "text.txt"}}, "text.txt cannot be written.*Choose another"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CONFIGURATIONS)
def test_a_mistake_in_a_configuration(mistake: str, octune: Any, project: Path) -> None:
    sections, expected = CONFIGURATIONS[mistake]
    path = project / f"{mistake.replace(' ', '_')}.yaml"
    path.write_text(yaml.safe_dump({**SECTIONS, **sections}))
    before = files(project)
    code, said = octune("tune", path.name)
    assert code == 2, said
    assert re.search(expected, said), said
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert files(project) == before


COMMANDS: dict[str, str] = {
    "tune none.yaml": "none.yaml does not exist",
    "tune filled": "filled is a folder. Name a YAML file",
    "tune syntax.yaml": "syntax.yaml, line 2: this is not valid YAML",
    "tune list.yaml": "must be a mapping of sections",
    "tune empty.yaml": "empty.yaml is empty. Write at least one section",
    "tune text.npz": "text.npz, line 1: a configuration must be a mapping",
    "tune": "Name the model and the data: give a YAML file",
    "tune --model mistaken:build": "Name the model and the data",
    "tune --model mistaken:build --data none.npz": "There is no file none.npz. Expected",
    "tune --model mistaken:build --data filled": "filled is a folder, which needs a --task",
    "tune --model mistaken:build --data text.txt": "text.txt is not an .npz file. Expected an .npz file",
    "tune --model mistaken:build --data data.npz --metric acuracy": "Did you mean 'accuracy'",
    "tune --model mistaken:build --data data.npz --criterion 3": "criterion.relative must be",
    "tune --model mistaken:build --data data.npz --calibration text.npz": "text.npz cannot be read.*Expected",
    "init good.yaml --yes": "good.yaml already exists. Give --overwrite",
    "tune good.yaml --output text.txt": "--output text.txt cannot be written: .*is a file.*Choose another",
    "tune good.yaml --output text.txt/below": "--output text.txt/below cannot be written",
    "tune good.yaml --output /proc/none": "--output /proc/none cannot be written.*Choose another folder",
    "tune good.yaml --output filled": "--output filled exists and is not a saved model.*Choose another",
    "tune good.yaml --output saved": "--output saved holds a saved model. Give --overwrite",
    "tune good.yaml --workspace /proc/none": "workspace /proc/none cannot be written.*Choose another",
    "tune good.yaml --model none.onnx": "There is no file none.onnx. Expected",
    "tune good.yaml --task sst-2": "--data, the folder of its files, is missing",
    "tune --task none --model x --data .": r"Unknown task 'none'\..* Expected one of: cola",
    "tune --frobnicate": "No such option: --frobnicate",
    "frobnicate": "No such command 'frobnicate'",
    "resume filled": "filled is not the workspace of a run: it has no config.yaml. Expected",
    "resume none": "none is not the workspace of a run: there is no such folder. Expected",
    "replay filled": "filled is not the workspace of a run: it has no journal.jsonl. Expected",
    "analyze good.yaml --output filled": "--output filled is a folder. Expected the name of a file",
    "analyze good.yaml --output text.txt/a.json": "cannot be written: .*text.txt is a file",
    "config": "give a YAML file, or --schema",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_in_a_command(command: str, octune: Any, project: Path) -> None:
    before = files(project)
    code, said = octune(*command.split())
    assert code == 2, said
    assert re.search(COMMANDS[command], said), said
    assert "Traceback" not in said
    assert files(project) == before


def test_what_was_not_foreseen_is_not_taken_for_a_verdict(
    octune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 says that the criterion is not met."""

    def fail(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("octune.cli.config.load_config", fail)
    code, said = octune("config", "good.yaml")
    assert code == 3
    assert "Traceback" in said
    assert "ZeroDivisionError: a bug" in said
