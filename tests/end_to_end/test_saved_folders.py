"""Every saved folder loads in a process of its own, in another folder, when the fp32 model and the code that
built it are gone, and gives the outputs that it gave when it was tuned.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import octune
from octune.backends.batches import Inputs
from octune.backends.torch.compiled import CompiledModel
from octune.cli import app
from octune.errors import ArtifactError
from octune.machine import pretending, probe_machine
from octune.opening import open_model
from octune.result import Result
from tests.backends.torch.models import tiny_bert, token_batches
from tests.digits import Digits, config
from tests.machines import AVX2
from tests.outputs import outputs

ROOT = Path(__file__).resolve().parents[2]


def elsewhere(folders: list[Path], place: Path, **given: Any) -> list[np.ndarray[Any, Any]]:
    """The outputs of saved models in a process that has nothing but them."""
    np.savez(place / "given.npz", **given)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.outputs",
            *map(str, (place / "given.npz", place / "out.npz", *folders)),
        ],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with np.load(place / "out.npz") as out:
        return [out[str(i)] for i in range(len(folders))]


# -- PyTorch -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(data: Digits) -> Result:
    return octune.tune(data.model(), calibration=data.batches(), evaluate=lambda model: 1.0, config=config())


@pytest.fixture(scope="module")
def noisy(data: Digits) -> np.ndarray[Any, Any]:
    """The digits are sixteenths, which lie exactly between two uint8 values: with a little noise no rounding
    of ties has a say.
    """
    noise = 1e-3 * np.random.default_rng(0).standard_normal((50, 64), np.float32)
    made: np.ndarray[Any, Any] = data.test[:50].numpy() + noise
    return made


FACTORY = """
import torch
from torch import nn
def build():
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))
    model.load_state_dict(torch.load("fp32.pt", weights_only=True))
    return model
"""


def test_a_factory_of_which_nothing_is_left(
    data: Digits, noisy: np.ndarray[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command and in Python, from the same YAML file: the same folder."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    (project / "digits_factory.py").write_text(FACTORY)
    torch.save(data.state, project / "fp32.pt")
    np.savez(project / "data.npz", x=data.train[:64].numpy())
    sections = {
        **config(),
        "model": {"path": "digits_factory:build"},
        "calibration": {"data": "data.npz"},
        "criterion": {"relative": 0.5},
    }
    (project / "conf.yaml").write_text(yaml.safe_dump(sections))
    by_command, by_python = tmp_path / "by_command", tmp_path / "by_python"
    done = CliRunner().invoke(app, ["tune", "conf.yaml", "-q", "--output", str(by_command)])
    assert done.exit_code == 0, done.output
    result = octune.tune(config=project / "conf.yaml")
    result.save(by_python)
    assert sorted(path.name for path in by_command.iterdir()) == sorted(p.name for p in by_python.iterdir())
    wanted = outputs(result.model, {"x": noisy})
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(project)
    for found in elsewhere([by_command, by_python], tmp_path, x=noisy):
        assert np.array_equal(found, wanted)


@pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")
def test_a_compiled_model_has_a_form_for_other_cpus(
    tuned: Result, noisy: np.ndarray[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from octune.backends.torch.compiled import CompiledModel, compile_model

    compiled = compile_model(tuned.model, Inputs((torch.from_numpy(noisy[:4]),)))
    folder = replace(tuned, model=compiled).save(tmp_path / "compiled")
    native = octune.load(folder)
    assert isinstance(native, CompiledModel)
    assert np.array_equal(outputs(native, {"x": noisy}), outputs(compiled, {"x": noisy}))
    opened = open_model(folder)
    (answers,) = opened.run({opened.inputs[0].name: noisy}).values()
    assert np.array_equal(answers, outputs(compiled, {"x": noisy}))
    assert opened.ops is not None
    assert opened.ops.int8 > 0
    assert opened.size > 0
    with pretending(AVX2):
        portable = octune.load(folder)
    assert not isinstance(portable, CompiledModel)
    assert "which this one lacks: eager int8 is used" in caplog.text
    assert np.array_equal(outputs(portable, {"x": noisy}), outputs(tuned.model, {"x": noisy}))


class Wrapped(nn.Module):
    """A class of one's own that returns an object of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = tiny_bert()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask)


def test_berts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hugging Face folder, and a class around such a model whose outputs only transformers can read."""
    monkeypatch.chdir(tmp_path)
    tiny_bert().save_pretrained("fp32")
    batches = [inputs for inputs, _ in token_batches(2)]
    common: dict[str, Any] = {"calibration": batches, "evaluate": lambda model: 1.0, "config": config()}
    from_folder = octune.tune("fp32", **common)
    wrapped = octune.tune(Wrapped(), **common)
    folders = [from_folder.save(tmp_path / "folder"), wrapped.save(tmp_path / "wrapped")]
    shutil.rmtree("fp32")
    given = {name: tensor[:3] for name, tensor in token_batches(1, length=9, seed=1)[0][0].items()}
    arrays = {name: tensor.numpy() for name, tensor in given.items()}
    wanted = [outputs(result.model, arrays) for result in (from_folder, wrapped)]
    found = elsewhere(folders, tmp_path, **arrays)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)
    model = octune.load(folders[1])
    by_position = model(given["input_ids"], given["attention_mask"])[0]
    assert np.array_equal(by_position.numpy(), wanted[1])
    with pytest.raises(ArtifactError, match=r"takes input_ids, attention_mask.*given input_ids\. For other"):
        model(given["input_ids"])


@pytest.mark.slow
@pytest.mark.skipif(probe_machine().compiler is None, reason="needs g++")
def test_a_saved_hugging_face_model_is_compiled_later(tmp_path: Path) -> None:
    """By the command, from the folder alone: what came with the model stays beside it."""
    bert = tiny_bert()
    bert.bert.encoder.layer = bert.bert.encoder.layer[:1]
    bert.config.num_hidden_layers = 1
    bert.save_pretrained(tmp_path / "fp32")
    model = octune.quantize(str(tmp_path / "fp32"), calibration=[inputs for inputs, _ in token_batches(2)])
    folder = octune.save(model, tmp_path / "int8")
    before = sorted(path.name for path in folder.iterdir())
    shutil.rmtree(tmp_path / "fp32")
    done = CliRunner().invoke(app, ["compile", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["distance"] <= 0.01
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "compiled.pt2"])
    compiled = octune.load(folder)
    assert isinstance(compiled, CompiledModel)
    given = token_batches(1, rows=3, length=9, seed=1)[0][0]
    assert compiled.signature.matches((), given), "native code takes what the model takes"
    torch.testing.assert_close(compiled(**given).logits, model(**given).logits, atol=0.05, rtol=0)
    assert compiled.config.num_labels == 2


class Undecided(nn.Module):
    """What it does depends on the values it sees, so there is no one graph of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x if x.sum() > 0 else -x)


def test_a_model_that_cannot_be_exported_says_so_when_it_is_saved(
    data: Digits, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "octune")
    result = octune.tune(Undecided(), calibration=data.batches(), evaluate=lambda model: 1.0, config=config())
    folder = result.save(tmp_path / "int8")
    said = [r.getMessage() for r in caplog.records if "can be loaded only with its class" in r.getMessage()]
    assert len(said) == 1
    assert "Undecided does, with any weights" in said[0]
    assert said == json.loads((folder / "octune.json").read_text())["backend"]["notes"]
    with pytest.raises(ArtifactError, match=r"Undecided.*octune\.load\(folder, factory=lambda: Undecided"):
        octune.load(folder)
    again = octune.load(folder, factory=Undecided)
    assert torch.equal(again(data.test), result.model(data.test))


class Counting(nn.Module):
    """It makes a number of the batch size, so an exported program has only the one that it was made with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x + torch.ones(int(x.shape[0]), 64))
        return made


def test_a_batch_size_that_a_model_fixes_is_told(
    data: Digits, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "octune")
    batches = data.batches()
    result = octune.tune(Counting(), calibration=batches, evaluate=lambda model: 1.0, config=config())
    folder = result.save(tmp_path / "int8")
    assert "takes batches of 16 only" in caplog.text
    model = octune.load(folder)
    assert torch.equal(model(batches[0]), result.model(batches[0]))
    with pytest.raises(ArtifactError, match=r"takes batches of 16, no others.*factory="):
        model(batches[0][:3])
    assert octune.load(folder, factory=Counting)(batches[0][:3]).shape == (3, 10)


# -- TensorFlow and ONNX -------------------------------------------------------------------------------------


def tensorflow_files(place: Path) -> dict[str, Path]:
    from tests.backends.tensorflow import subjects

    (place / "graph.pb").write_bytes(subjects.graph_def().SerializeToString())
    subjects.keras_model().save(place / "model.keras")
    return {
        "graph": place / "graph.pb",
        "keras": place / "model.keras",
        "saved_model": subjects.saved_model(place / "saved_model"),
    }


def onnx_files(place: Path) -> dict[str, Path]:
    import onnx

    from tests.backends.onnx.models import exported

    onnx.save(
        exported(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), {"input": torch.zeros(2, 64)}, ["y"]),
        place / "model.onnx",
    )
    return {"onnx": place / "model.onnx"}


@pytest.mark.parametrize(
    ("framework", "files"),
    [("tensorflow", tensorflow_files), ("onnx", onnx_files)],
    ids=["tensorflow", "onnx"],
)
def test_graphs(
    framework: str,
    files: Callable[[Path], dict[str, Path]],
    data: Digits,
    noisy: np.ndarray[Any, Any],
    tmp_path: Path,
) -> None:
    pytest.importorskip(framework)
    place = tmp_path / "fp32"
    place.mkdir()
    calibration = [batch.numpy() for batch in data.batches()]
    results = {
        kind: octune.tune(path, calibration=calibration, evaluate=lambda model: 1.0, config=config())
        for kind, path in files(place).items()
    }
    folders = [result.save(tmp_path / kind) for kind, result in results.items()]
    shutil.rmtree(place)
    found = elsewhere(folders, tmp_path, x=noisy)
    for (kind, result), got in zip(results.items(), found, strict=True):
        assert result.plan.names("int8"), kind
        assert np.allclose(got, outputs(result.model, {"x": noisy}), atol=1e-5), kind
