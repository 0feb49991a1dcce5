"""``octune tune --task``: a model's folder and a task's folder are all that has to be said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octune.cli import app
from octune.config import load_config
from octune.errors import ConfigError
from tests import zoo

pytest.importorskip("torch")
pytest.importorskip("transformers")


def invoke(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cola", "squad"])
def test_a_task_needs_its_name_and_two_folders(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if task == "squad":
        data = zoo.squad(tmp_path / "squad")
        model = zoo.reader(tmp_path / "model", data)
    else:
        data = zoo.glue(tmp_path / "glue", "cola")
        model = zoo.classifier(tmp_path / "model", "cola", data)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squad.yaml").write_text("performance: {compile: never}\n")  # a file may say the rest
    file = ["squad.yaml"] if task == "squad" else []
    code, out = invoke(
        "tune",
        *file,
        "--task",
        task,
        "--model",
        model,
        "--data",
        data,
        "--json",
        "--output",
        tmp_path / "int8",
    )
    report = json.loads(out)
    assert code == 0
    assert report["met"]
    assert report["baseline"]["score"]["value"] > 0.9
    assert report["baseline"]["score"]["n"] == zoo.DEV
    assert (tmp_path / "int8" / "octune.json").is_file()
    [folder] = (tmp_path / "octune_runs").iterdir()
    assert folder.name.startswith(task)
    # "octune resume" starts from there
    assert load_config(folder / "config.yaml").evaluation.data is not None
    assert set(report["stages"]) >= {"baseline", "calibration", "harm", "trial"}
    code, out = invoke("analyze", "--task", task, "--model", model, "--data", data, "--json")
    assert code == 0
    assert {op["name"] for op in json.loads(out)["ops"]} == set(report["plan"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "n", "least"), [("ner", zoo.DEV, 0.9), ("sts", zoo.DEV, -1.0), ("retrieval", 12, 0.1)]
)
def test_tasks_of_taggers_and_encoders(
    task: str, n: int, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = {"ner": zoo.ner, "sts": lambda place: zoo.glue(place, "sts-b"), "retrieval": zoo.beir}
    data = makers[task](tmp_path / "data")
    model = tmp_path / "model"
    zoo.tagger(model, data) if task == "ner" else zoo.encoder(model)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf.yaml").write_text(
        "performance: {compile: never, iterations: 5}\ncriterion: {absolute: 0.1}\n"
    )
    words = ["--task", task, "--model", model, "--data", data, "--json"]
    report = json.loads(invoke("tune", "conf.yaml", *words)[1])
    score = report["trials"][0]["score"]
    assert report["baseline"]["score"]["value"] > least
    assert (score["n"], score["low"] < score["value"] < score["high"] or score["value"] == 1.0) == (n, True)
    assert report["coverage"]["int8"] + report["coverage"]["fp32"] + report["coverage"]["bf16"] > 0.99


def test_options_replace_what_a_file_names(tmp_path: Path) -> None:
    from octune.cli.options import Naming

    conf = tmp_path / "conf.yaml"
    conf.write_text("model: {path: old}\ncalibration: {samples: 8}\ntuning: {strategy: basic}\n")
    config = Naming("cola", "models/new", tmp_path, "models/tokenizer").applied(conf)
    assert config.model is not None
    assert config.model.path == "models/new"
    assert config.calibration.samples == (8,)
    assert config.tuning.strategy == "basic"
    for section in (config.calibration, config.evaluation):
        assert section.data is not None
        assert (section.data.task, section.data.folder, section.data.tokenizer) == (
            "cola",
            tmp_path,
            "models/tokenizer",
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name the model"),
        (["--model", "m"], "Name the model"),
        (["--task", "cola", "--model", "m"], "--data, the folder of its files, is missing"),
        (["--data", "d", "--model", "m"], "--data d is not an .npz file"),
        (["--model", "m", "--tokenizer", "t"], "--tokenizer is for the data of --task"),
        (["--task", "colla", "--model", "m", "--data", "d"], "Did you mean 'cola'"),
    ],
)
def test_what_is_missing_is_said(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        invoke("tune", *words)
    assert message in str(caught.value)
