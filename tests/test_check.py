"""Judging int8 models of any maker: verdicts, flips, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import octune
from octune.errors import ConfigError, DataError, ModelError
from octune.report.check import flips_text, junit
from tests.digits import digits
from tests.foreign import digits_file, onnx_digits

FACTORY = "tests.foreign:digits_network"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_file(tmp_path_factory.mktemp("data") / "dev.npz")


def classes(name: str) -> Any:
    """What a file answers, by ONNX Runtime alone, in the batches that are checked: dynamic ranges differ."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx_digits() / name))
    batches = digits().test.split(32)
    return np.concatenate([session.run(None, {"x": x.numpy()})[0].argmax(axis=1) for x in batches])


def test_a_model_against_itself_passes_without_a_flip(dev: Path) -> None:
    file = onnx_digits() / "fp32.onnx"
    found = octune.check(file, file, dev, timing=False)
    assert (found.outcome, found.met, found.metric, found.flips) == ("pass", True, "accuracy", [])
    assert found.verdict is not None
    assert (found.verdict.drop, found.verdict.lost, found.verdict.gained) == (0.0, 0, 0)
    assert found.timed is None


def test_a_good_one_passes_and_is_timed(dev: Path) -> None:
    found = octune.check(FACTORY, onnx_digits() / "dynamic.onnx", dev, criterion="3%")
    right = classes("dynamic.onnx") == digits().labels.numpy()
    assert found.met
    assert found.int8.score is not None
    assert found.int8.score.value == right.mean()
    assert (str(found.fp32.ops), str(found.int8.ops)) == ("0 of 3", "3 of 3")
    assert (str(found.fp32.coverage), str(found.int8.coverage)) == ("100% fp32 in matmul", "100% int8")
    assert found.to_json()["int8"]["coverage"]["int8"] == 1.0
    assert "multiply-adds: 100% fp32 in matmul -> 100% int8" in str(found)
    assert found.timed is not None
    assert found.timed.speed.low <= found.timed.speed.ratio <= found.timed.speed.high
    assert found.batch == 32
    assert found.fp32.latency_ms is not None
    assert found.int8.size < (onnx_digits() / "fp32.onnx").stat().st_size
    assert "speed-up" in str(found)


def test_a_broken_one_fails_and_its_flips_are_those_of_the_runtime(dev: Path, tmp_path: Path) -> None:
    found = octune.check(onnx_digits() / "fp32.onnx", onnx_digits() / "broken.onnx", dev, timing=False)
    assert (found.outcome, found.met) == ("fail", False)
    assert found.verdict is not None
    assert found.flips is not None
    labels, before, after = digits().labels.numpy(), classes("fp32.onnx"), classes("broken.onnx")
    changed = np.flatnonzero((before == labels) != (after == labels))
    assert [flip.item for flip in found.flips] == changed.tolist()
    for flip in found.flips:
        assert (flip.fp32, flip.int8, flip.label) == (before[flip.item], after[flip.item], labels[flip.item])
        assert flip.change == ("lost" if flip.fp32 == flip.label else "gained")
        assert len(flip.int8_output) == 10
    with (tmp_path / "flips.csv").open("w+", newline="") as file:
        file.write(flips_text(found, tmp_path / "flips.csv"))
        file.seek(0)
        rows = list(csv.DictReader(file))
    assert [int(row["item"]) for row in rows] == changed.tolist()
    assert rows[0]["fp32"] == str(before[changed[0]])
    lines = flips_text(found, Path("flips.jsonl")).splitlines()
    assert [json.loads(line)["item"] for line in lines] == changed.tolist()


def test_few_items_cannot_decide(tmp_path: Path) -> None:
    few = digits_file(tmp_path / "few.npz", 20)
    models = onnx_digits() / "fp32.onnx", onnx_digits() / "qdq.onnx"
    found = octune.check(*models, few, timing=False)
    assert found.outcome == "undecidable"
    assert found.verdict is not None
    assert found.verdict.needed is None or found.verdict.needed > 20
    assert found.met is (found.verdict.drop <= found.verdict.allowed)
    sure = octune.check(*models, few, config={"criterion": {"confidence": 0.95}}, timing=False)
    assert (sure.outcome, sure.met) == ("undecidable", False)
    (case,) = ElementTree.fromstring(junit(sure)).iter("testcase")
    (failure,) = case.findall("failure")
    assert failure.get("type") == "undecidable"


def test_without_labels_agreement_counts(tmp_path: Path) -> None:
    unlabelled = digits_file(tmp_path / "unlabelled.npz", labels=False)
    found = octune.check(onnx_digits() / "fp32.onnx", onnx_digits() / "broken.onnx", unlabelled, timing=False)
    same = classes("fp32.onnx") == classes("broken.onnx")
    assert found.metric == "agreement"
    assert found.int8.score is not None
    assert found.int8.score.value == pytest.approx(same.mean())
    assert found.flips is not None
    assert [flip.item for flip in found.flips] == np.flatnonzero(~same).tolist()
    assert {flip.change for flip in found.flips} == {"lost"}


def test_objects_batches_and_functions_as_metric() -> None:
    def right(predictions: Any, labels: Any) -> Any:
        return predictions.argmax(axis=1) == labels

    model = digits().model()
    found = octune.check(model, digits().model(), digits().labelled(), metric=right, timing=False)
    assert found.met
    assert found.fp32.score is not None
    assert found.fp32.score.value == pytest.approx(digits().accuracy(model))


def test_data_in_another_order_is_told() -> None:
    images, labels = digits().test, digits().labels
    dataset = torch.utils.data.TensorDataset(images, labels)
    shuffled = torch.utils.data.DataLoader(dataset, batch_size=100, shuffle=True)
    found = octune.check(digits().model(), digits().model(), shuffled, metric="accuracy", timing=False)
    assert found.flips is None
    assert any("do not shuffle" in note for note in found.notes)


def test_a_mean_error_knows_no_flips(tmp_path: Path) -> None:
    images, model = digits().test.numpy(), digits().model()
    with torch.no_grad():
        values = model(digits().test).numpy()
    np.savez(tmp_path / "values.npz", x=images, labels=values)
    found = octune.check(
        model, onnx_digits() / "dynamic.onnx", tmp_path / "values.npz", metric="mse", timing=False
    )
    assert found.flips is None
    assert found.verdict is not None
    assert not found.met  # a perfect score leaves no room for any loss
    assert any("none can flip" in note for note in found.notes)
    assert flips_text(found, Path("flips.csv")).startswith("item,change,label")


def test_a_model_that_answers_nan_fails(dev: Path) -> None:
    broken = digits().model()
    with torch.no_grad():
        broken[-1].weight[0, 0] = float("nan")
    found = octune.check(digits().model(), broken, dev, timing=False)
    assert (found.outcome, found.met) == ("fail", False)
    assert "NaN" in (found.failure or "")
    assert json.loads(json.dumps(found.to_json()))["verdict"] is None
    assert ElementTree.fromstring(junit(found)).get("failures") == "1"


def test_junit_is_one_test_case(dev: Path) -> None:
    file = onnx_digits() / "fp32.onnx"
    root = ElementTree.fromstring(junit(octune.check(file, file, dev, timing=False)))
    (suite,) = root.findall("testsuite")
    (case,) = suite.findall("testcase")
    assert (root.tag, suite.get("tests"), suite.get("failures")) == ("testsuites", "1", "0")
    assert case.find("failure") is None
    assert float(case.get("time") or "") > 0
    names = [one.get("name") for one in suite.iter("property")]
    assert {"outcome", "criterion", "metric", "size (int8)"} <= set(names)


def test_two_folders_of_octune(dev: Path, tmp_path: Path) -> None:
    from tests.test_opening import tuned

    tuned(digits().model()).save(tmp_path / "torch")
    tuned(str(onnx_digits() / "fp32.onnx")).save(tmp_path / "onnx")
    found = octune.check(tmp_path / "torch", tmp_path / "onnx", dev, criterion="3%", timing=False)
    assert found.met
    assert (found.fp32.kind, found.int8.kind) == ("Octune folder (pytorch)", "Octune folder (onnx)")
    assert octune.check(FACTORY, tmp_path / "torch", dev, criterion="3%", timing=False).met


def test_mistakes(dev: Path, tmp_path: Path) -> None:
    fp32 = onnx_digits() / "fp32.onnx"
    images, labels = digits().test.numpy(), digits().labels.numpy()

    def file(name: str, **arrays: Any) -> Path:
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    refused: list[tuple[Any, type[Exception], str]] = [
        (None, ConfigError, "no data"),
        (tmp_path / "nowhere.npz", DataError, "There is no file"),
        (file("short.npz", x=images, labels=labels[:-1]), DataError, "differ in"),
        (file("empty.npz", x=images[:0], labels=labels[:0]), DataError, "empty"),
        (file("one.npz", x=images[:1], labels=labels[:1]), DataError, "one item"),
        (file("wide.npz", x=np.zeros((8, 65), "f"), labels=labels[:8]), DataError, "x"),
        (
            file("two.npz", a=images[:8], b=images[:8], labels=labels[:8]),
            DataError,
            r"a \(float32.*x \(float32",
        ),
        (file("real.npz", x=images, labels=labels + 0.5), ConfigError, "metric"),
        ([], DataError, "empty"),
    ]
    for data, error, said in refused:
        with pytest.raises(error, match=said):
            octune.check(fp32, fp32, data, timing=False)
    five = torch.nn.Linear(64, 5)
    with pytest.raises(ModelError, match=r"cannot be matched.*logits \[32, 10\].*output \[32, 5\]"):
        octune.check(fp32, five, dev, timing=False)
    with pytest.raises(ConfigError, match="acuracy"):
        octune.check(fp32, fp32, dev, metric="acuracy", timing=False)
