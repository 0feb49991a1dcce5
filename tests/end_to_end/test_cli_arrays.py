"""A job without a YAML file, from a model and arrays, and the YAML file that ``octune init`` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from octune.arrays import ArrayBatches
from octune.cli import app
from octune.config import load_config
from octune.errors import DataError, OctuneError
from tests.digits import SIZE, Digits

CODE = """
import torch
from torch import nn
def build():
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))
    model.load_state_dict(torch.load("digits.pt", weights_only=True))
    return model.eval()
"""


@pytest.fixture(scope="module")
def project(data: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    folder = tmp_path_factory.mktemp("arrays")
    torch.save(data.state, folder / "digits.pt")
    (folder / "arrays_model.py").write_text(CODE)
    np.savez(folder / "digits.npz", x=data.test.numpy(), label=data.labels.numpy())
    np.savez(folder / "train.npz", x=data.train[:100].numpy())
    (folder / "quick.yaml").write_text(yaml.safe_dump(SIZE))
    return folder


@pytest.fixture
def octune(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))

    def call(*arguments: str, answers: str | None = None) -> Any:
        return CliRunner().invoke(app, arguments, input=answers)

    return call


MODEL = ("--model", "arrays_model:build")


def test_a_model_and_a_file_of_arrays_are_enough(octune: Any, tmp_path: Path) -> None:
    done = octune(
        "tune", "quick.yaml", *MODEL, "--data", "digits.npz", "--metric", "accuracy", "--criterion", "5%",
        "--workspace", str(tmp_path / "run"), "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["criterion"]["relative"] == 0.05
    assert "119 random rows of digits.npz calibrate, and the others judge" in report["notes"]
    assert report["baseline"]["score"]["n"] == 597 - 119


def test_nothing_but_options(octune: Any, tmp_path: Path) -> None:
    """Without even a file; agreement with fp32 is what counts, and calibration data is a file of its own."""
    done = octune(
        "analyze", *MODEL, "--data", "digits.npz", "--calibration", "train.npz", "--json"
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["ops"]) == 3


def test_parts_have_no_row_in_common_and_lack_none(tmp_path: Path) -> None:
    for count in (2, 3, 40, 10_000):
        np.savez(tmp_path / "rows.npz", x=np.arange(count))
        parts = [
            np.concatenate(list(ArrayBatches(tmp_path / "rows.npz", 64, part)))
            for part in ("calibration", "evaluation")
        ]
        assert sorted(np.concatenate(parts)) == list(range(count))
        assert 1 <= len(parts[0]) <= 512
    np.savez(tmp_path / "one.npz", x=np.zeros(1))
    with pytest.raises(DataError, match=r"one\.npz has 1 rows.*Give separate files"):
        ArrayBatches(tmp_path / "one.npz", 8, "calibration")


def test_init_writes_what_tune_runs(octune: Any, project: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = octune("init", str(path), *MODEL, "--data", "digits.npz", "--metric", "accuracy", "--yes")
    assert done.exit_code == 0, done.output
    assert f"Next: octune tune {path}" in done.output
    config = load_config(path)
    assert config.evaluation.metric == "accuracy"
    # Each commented line is legal where it stands.
    text = re.sub(r"^  # ", "  ", path.read_text(), flags=re.MULTILINE)
    path.write_text(text.replace("objective: performance", "objective: modelsize"))
    changed = load_config(path)
    assert (changed.performance.compile, changed.criterion.certify) == ("never", "holdout")
    assert changed.model is not None
    path.write_text(path.read_text().replace("target: onnx", ""))
    done = octune("tune", str(path), "--workspace", str(tmp_path / "run"), "-q")
    assert done.exit_code in (0, 1), done.output  # the part that is held out is small
    assert "saved to" in done.output


def test_init_asks_for_what_no_option_says(octune: Any, tmp_path: Path) -> None:
    path = tmp_path / "asked.yaml"
    done = octune("init", str(path), answers="arrays_model:build\ndigits.npz\ntrain.npz\naccuracy\n0.5%\n")
    assert done.exit_code == 0, done.output
    config = load_config(path)
    assert config.calibration.data is not None
    assert config.calibration.data.arrays == Path("train.npz")
    assert config.criterion.relative == 0.005


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "m"), "There was no answer to a question"),
        (("--yes",), "Name the model and the data"),
        ((*MODEL, "--data", "train.npz", "--metric", "accuracy", "--yes"), "needs labels, and train.npz has"),
        ((*MODEL, "--data", "none.npz", "--yes"), r"There is no file none\.npz"),
        ((*MODEL, "--data", "digits.pt", "--yes"), r"digits\.pt is not an \.npz file"),
        ((*MODEL, "--data", ".", "--yes"), "is a folder, which needs a --task"),
        ((*MODEL, "--data", "digits.npz", "--metric", "acuracy", "--yes"), "Did you mean 'accuracy'"),
        ((*MODEL, "--data", "digits.npz", "--criterion", "200%", "--yes"), "criterion.relative must be"),
    ],
)
def test_init_refuses_what_tune_would_refuse(
    octune: Any, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = octune("init", str(tmp_path / "no.yaml"), *arguments, answers="")
    assert isinstance(done.exception, OctuneError), done.output
    assert re.search(expected, str(done.exception))
    assert not list(tmp_path.iterdir())


def test_init_replaces_nothing_unasked(octune: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{}")
    arguments = ("init", str(path), *MODEL, "--data", "digits.npz", "--yes")
    assert "--overwrite" in str(octune(*arguments).exception)
    assert path.read_text() == "{}"
    assert octune(*arguments, "--overwrite").exit_code == 0
    assert "arrays_model:build" in path.read_text()
