"""``octune check`` from the command line: exit codes, files for CI, and models of different kinds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests import zoo
from tests.digits import digits
from tests.foreign import digits_file, onnx_classifier, onnx_digits, tensorflow_digits

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(octune_command: Check) -> Check:
    return partial(octune_command, "check")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier as a Hugging Face folder and as ONNX files of other tools, and its data."""
    from onnxruntime import quantization

    folder = tmp_path_factory.mktemp("task")
    zoo.glue(folder / "glue", "sst-2")
    zoo.classifier(folder / "model", "sst-2", folder / "glue")
    (folder / "glue/SST-2/train.tsv").unlink()  # only tuning needs it
    onnx_classifier(folder / "model", folder / "fp32.onnx")
    quantization.quantize_dynamic(folder / "fp32.onnx", folder / "dynamic.onnx")
    return folder


def test_hugging_face_against_onnx(task: Path, check: Check, tmp_path: Path) -> None:
    data = ("--task", "sst-2", "--data", task / "glue", "--no-timing")
    # 96 items without a flip say that less than 5 % are lost, and not that less than 1 % are.
    code, out, _ = check(task / "model", task / "fp32.onnx", *data, "--json", "--criterion", "5%")
    found = json.loads(out)
    assert (code, found["outcome"], found["flips"], found["metric"]) == (0, "pass", 0, "accuracy")
    assert found["verdict"]["n"] == zoo.DEV
    assert found["fp32"]["score"]["value"] > 0.9
    code, out, _ = check(task / "fp32.onnx", task / "dynamic.onnx", *data, "--json", "--criterion", "20%",
                         "--tokenizer", task / "model")  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert found["int8"]["int8_ops"]["int8"] >= 12
    assert found["fp32"]["int8_ops"]["int8"] == 0


def test_flips_of_a_task_have_their_text(task: Path, check: Check, tmp_path: Path) -> None:
    """Against a model that says the opposite, every answer flips."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(task / "model")
    for parameter in model.classifier.parameters():
        parameter.data.neg_()
    model.save_pretrained(tmp_path / "opposite")
    data = ("--task", "sst-2", "--data", task / "glue", "--no-timing")
    files = ("--flips", tmp_path / "flips.csv", "--junit", tmp_path / "check.xml")
    code, _, _ = check(task / "model", tmp_path / "opposite", *data, *files)
    assert code == 1
    with (tmp_path / "flips.csv").open(newline="", encoding="utf-8") as file:
        flips = list(csv.DictReader(file))
    lines = (task / "glue/SST-2/dev.tsv").read_text().splitlines()[1:]
    assert len(flips) == zoo.DEV
    for flip in flips:
        text, label = lines[int(flip["row"])].split("\t")
        assert (flip["text"], flip["label"]) == (text, label)
        assert flip["fp32"] != flip["int8"]
    root = ElementTree.parse(tmp_path / "check.xml").getroot()
    assert (root.get("tests"), root.get("failures")) == ("1", "1")


@pytest.mark.slow
def test_saved_model_against_tflite(check: Check, tmp_path: Path) -> None:
    folder, data = tensorflow_digits(), digits_file(tmp_path / "dev.npz")
    code, out, _ = check(
        folder / "saved", folder / "int8.tflite", "--data", data, "--criterion", "5%", "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert (found["fp32"]["kind"], found["int8"]["kind"]) == ("SavedModel", "LiteRT file")
    assert found["fp32"]["score"]["n"] == found["int8"]["score"]["n"] == len(digits().labels)
    assert found["int8"]["int8_ops"] == {"int8": 3, "total": 3}
    assert found["speedup"]["low"] <= found["speedup"]["ratio"] <= found["speedup"]["high"]
    assert found["int8"]["size"] < found["fp32"]["size"]


def test_exit_codes_and_words(check: Check, tmp_path: Path) -> None:
    fp32, data = onnx_digits() / "fp32.onnx", digits_file(tmp_path / "dev.npz")
    code, out, _ = check(fp32, onnx_digits() / "broken.onnx", "--data", data, "--no-timing")
    assert code == 1
    assert "fail: the drop of" in out
    code, out, _ = check(fp32, fp32, "--data", data, "--no-timing", "--quiet")
    assert (code, out.splitlines()[0].partition(":")[0]) == (0, "pass")
    few = digits_file(tmp_path / "few.npz", 20)
    words = (fp32, onnx_digits() / "qdq.onnx", "--data", few, "--no-timing", "--quiet")
    _, out, _ = check(*words)
    assert out.startswith("undecidable with 20 items")
    assert check(*words, "--confidence", "95%")[0] == 1
    assert (
        check(
            fp32,
            onnx_digits() / "broken.onnx",
            "--data",
            data,
            "--criterion",
            "absolute:1",
            "-q",
            "--no-timing",
        )[0]
        == 0
    )


def test_a_configuration_says_the_rest(check: Check, tmp_path: Path) -> None:
    digits_file(tmp_path / "dev.npz")
    fp32 = onnx_digits() / "fp32.onnx"
    (tmp_path / "conf.yaml").write_text(
        f"evaluation: {{data: {tmp_path / 'dev.npz'}, metric: {{topk: 2}}, samples: 64}}\n"
        "criterion: {absolute: 0.5}\n"
    )
    code, out, _ = check(fp32, fp32, "--config", tmp_path / "conf.yaml", "--json", "--threads", 1)
    found = json.loads(out)
    assert (code, found["metric"], found["criterion"]["absolute"]) == (0, "top2", 0.5)
    assert found["fp32"]["score"]["n"] == 64
    assert found["environment"]["threads"] == 1


def test_mistakes_exit_with_2_and_say_what_to_do(check: Check, tmp_path: Path) -> None:
    fp32, data = onnx_digits() / "fp32.onnx", digits_file(tmp_path / "dev.npz")
    np.savez(
        tmp_path / "wrong.npz", a=np.zeros((4, 64), "f"), b=np.zeros((4, 64), "f"), labels=np.zeros(4, int)
    )
    (tmp_path / "notes.txt").write_text("hello")
    mistakes: list[tuple[list[Any], str]] = [
        ([fp32, tmp_path / "nowhere.onnx", "--data", data], "There is no file"),
        ([fp32, tmp_path / "notes.txt", "--data", data], "its kind is not known"),
        ([fp32, fp32], "no data to compare"),
        ([fp32, fp32, "--data", tmp_path / "nowhere.npz"], "There is no file"),
        ([fp32, fp32, "--data", tmp_path], "--task"),
        ([fp32, fp32, "--data", tmp_path / "conf.yaml"], "--config"),
        ([fp32, fp32, "--data", tmp_path / "wrong.npz"], "does not fit"),
        ([fp32, fp32, "--data", data, "--metric", "acuracy"], "acuracy"),
        ([fp32, fp32, "--data", data, "--criterion", "lots"], "lots"),
        ([fp32, fp32, "--data", data, "--tokenizer", "x"], "--task"),
        ([fp32, fp32, "--task", "sst-2", "--data", tmp_path], "tokenizer"),
        ([fp32, fp32, "--task", "sst-9", "--data", tmp_path], "sst-9"),
        ([fp32, fp32, "--data", data, "--junit", tmp_path / "nowhere" / "x.xml"], "nowhere does not exist"),
        ([fp32, "tests.foreign:nothing", "--data", data], "cannot be imported"),
    ]
    for words, said in mistakes:
        code, out, err = check(*words)
        assert (code, out) == (2, ""), words
        assert said in err.replace("\n", " "), (words, err)
        assert "Traceback" not in err
    check(fp32, tmp_path / "nowhere.onnx", "--data", data, "--junit", tmp_path / "check.xml")
    root = ElementTree.parse(tmp_path / "check.xml").getroot()
    (error,) = root.iter("error")
    assert (root.get("errors"), root.get("failures")) == ("1", "0")
    assert "nowhere.onnx" in (error.get("message") or "")


@pytest.mark.slow
@pytest.mark.shared
def test_what_onnx_runtime_makes_of_a_real_bert(shared: Path, check: Check, tmp_path: Path) -> None:
    """Static int8 with its defaults ruins it, and is caught; dynamic int8 loses a little, which twenty
    sentences cannot tell.
    """
    from onnxruntime import quantization

    from octune.tasks import load_task

    folder = shared / "models/minilm-l6-sst2"
    calibration = load_task(
        "sst-2", shared / "data/glue", tokenizer=folder, calibration_samples=32
    ).calibration

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter([inputs for inputs, _ in calibration])

        def get_next(self) -> Any:
            return next(self._left, None)

    onnx_classifier(folder, tmp_path / "fp32.onnx")
    quantization.quantize_static(tmp_path / "fp32.onnx", tmp_path / "static.onnx", Reader())
    quantization.quantize_dynamic(tmp_path / "fp32.onnx", tmp_path / "dynamic.onnx")
    data = ("--task", "sst-2", "--data", shared / "data/glue", "--no-timing", "--quiet")
    code, out, _ = check(folder, tmp_path / "static.onnx", *data, "--samples", 128)
    assert (code, out.partition(":")[0]) == (1, "fail")
    few = ("--samples", 20)
    _, out, _ = check(folder, tmp_path / "dynamic.onnx", *data, *few)
    assert out.startswith("undecidable with 20 items")
    assert check(folder, tmp_path / "dynamic.onnx", *data, *few, "--confidence", "95%")[0] == 1
    assert check(folder, tmp_path / "dynamic.onnx", *data, "--samples", 256, "--criterion", "10%")[0] == 0


def test_the_workflow_for_ci_names_real_options() -> None:
    import typer
    import yaml

    from octune.cli import app

    root = Path(__file__).resolve().parents[2]
    workflow = yaml.safe_load((root / "examples/ci/check.yml").read_text())
    (job,) = workflow["jobs"].values()
    (command,) = [step["run"] for step in job["steps"] if "octune check" in step.get("run", "")]
    group: Any = typer.main.get_command(app)
    known = {option for parameter in group.commands["check"].params for option in parameter.opts}
    used = {word for word in command.replace("\\\n", " ").split() if word.startswith("--")}
    assert {"--data", "--criterion", "--confidence", "--junit"} <= used <= known
