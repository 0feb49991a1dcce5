"""Mistakes that people make in Python: each is an error that says what was given, what was expected and what
to do, before more than one batch was scored, and nothing is left behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import octune
from octune.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    EvaluationError,
    ModelError,
    OctuneError,
    PlanError,
    WorkspaceError,
)
from octune.machine import probe_machine

ROWS, WIDTH, CLASSES = 6, 8, 4
GENERATOR = torch.Generator().manual_seed(0)


def inputs(*shape: int) -> torch.Tensor:
    return torch.rand(shape or (ROWS, WIDTH), generator=GENERATOR)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, CLASSES)).eval()


LABELS = torch.arange(ROWS) % CLASSES
GOOD = [(inputs(), LABELS) for _ in range(4)]


class Samples(torch.utils.data.Dataset[Any]):
    """A data set where a loader is wanted."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        return inputs(1, 4, 4), 1


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, features: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.fc(features) * scale


class Nothing(nn.Linear):
    def forward(self, x: torch.Tensor) -> None:  # type: ignore[override]
        super().forward(x)


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("weights")


def labelled(labels: Any) -> list[Any]:
    return [(inputs(), labels)] * 3


def exhausted() -> Iterator[Any]:
    data = iter(GOOD)
    list(data)
    return data


def scikit_learn(predictions: Any, labels: Any) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions))


def ignores_subset(model: Any, subset: Any = None) -> list[float]:
    return [1.0] * 200


Change = dict[str, Any]
M: list[tuple[str, Change, type[OctuneError], tuple[str, ...]]] = [
    # -- the model
    ("no model", {"model": None}, ConfigError, ("There is no model", "give one to tune")),
    ("state dict", {"model": network().state_dict()}, ModelError, ("OrderedDict", r"torch\.nn\.Module")),
    ("class", {"model": nn.Linear}, ModelError, ("Linear", "instance|model itself|call it")),
    ("number", {"model": 3}, ModelError, ("int", r"torch\.nn\.Module")),
    ("meta device", {"model": nn.Linear(WIDTH, CLASSES, device="meta")}, ModelError, ("meta", "weights")),
    ("no such .pt", {"model": "nope.pt"}, OctuneError, (r"nope\.pt", "no file|does not exist")),
    ("no such .onnx", {"model": "nope.onnx"}, OctuneError, (r"nope\.onnx", "no file|does not exist")),
    (
        "no such folder",
        {"model": "./models/missing"},
        OctuneError,
        ("models/missing", "no file or folder"),
    ),
    ("forward raises", {"model": Broken(WIDTH, CLASSES)}, OctuneError, ("KeyError", "float32")),
    ("forward returns nothing", {"model": Nothing(WIDTH, CLASSES)}, OctuneError, ("None|output",)),
    # -- calibration data
    ("text", {"calibration": "train.csv"}, DataError, ("train.csv", "Expected an iterable of batches")),
    ("one dict", {"calibration": {"x": inputs()}}, DataError, ("one dict", r"list: \[batch\]")),
    ("one tensor", {"calibration": inputs()}, DataError, (r"shape \(6, 8\)", r"list: \[batch\]")),
    ("number", {"calibration": 128}, DataError, ("int", "Expected an iterable")),
    ("empty", {"calibration": []}, DataError, ("calibration data is empty", "DataLoader")),
    ("function of nothing", {"calibration": lambda: None}, DataError, ("NoneType", "Expected an iterable")),
    (
        "too wide",
        {"calibration": [inputs(6, 9)]},
        DataError,
        (r"\(6, 9\)", "calibration", "Expected batches"),
    ),
    ("integers", {"calibration": [torch.ones(6, 8, dtype=torch.long)]}, DataError, ("int64", "Expected")),
    ("data set", {"calibration": Samples()}, DataError, ("Dataset", r"DataLoader\(dataset, batch_size=32\)")),
    ("bytes", {"calibration": [inputs().to(torch.uint8)]}, DataError, ("uint8", "float32, and scaled")),
    ("batches of text", {"calibration": ["a", "b"]}, DataError, ("str", "Expected")),
    ("batches of None", {"calibration": [None]}, DataError, ("None", "Expected")),
    ("no rows", {"calibration": [inputs(0, 8)]}, DataError, (r"\(0, 8\)", "at least one")),
    # -- evaluation data
    ("no labels", {"evaluation": [inputs()] * 3}, DataError, ("no label", r"Expected \(inputs, label\)")),
    ("too few labels", {"evaluation": labelled(LABELS[:4])}, DataError, ("4 labels", "6 predictions")),
    (
        "single samples",
        {"evaluation": [(inputs(8), 1)] * 3},
        DataError,
        ("1 label", "4 predictions", "single samples must be put into batches"),
    ),
    ("one-hot", {"evaluation": labelled(torch.eye(6, 4))}, EvaluationError, ("class numbers", "Got")),
    (
        "label 7 of 4",
        {"evaluation": labelled(LABELS + 4)},
        EvaluationError,
        ("label 4", "4 classes", "Check"),
    ),
    ("labels of text", {"evaluation": labelled(["a"] * 6)}, EvaluationError, ("'a'", "numbers")),
    ("empty", {"evaluation": []}, DataError, ("evaluation data is empty", "DataLoader")),
    ("read before", {"evaluation": exhausted()}, DataError, ("evaluation data is empty", "DataLoader")),
    ("NaN", {"evaluation": [(inputs() * np.nan, LABELS)]}, EvaluationError, ("6 of 6 predictions are NaN",)),
    ("too wide", {"evaluation": [(inputs(6, 9), LABELS)]}, DataError, (r"\[6, 9\]", "Expected")),
    ("data set", {"evaluation": Samples()}, DataError, ("Dataset", "DataLoader")),
    ("no rows", {"evaluation": [(inputs(0, 8), LABELS[:0])]}, DataError, (r"\(0, 8\)", "at least one")),
    (
        "a name is missing",
        {"model": Named().eval(), "calibration": None, "evaluation": [({"features": inputs()}, LABELS)]},
        DataError,
        ("scale", "features"),
    ),
    (
        "a name is wrong",
        {
            "model": Named().eval(),
            "calibration": None,
            "evaluation": [({"feature": inputs(), "scale": torch.ones(1)}, LABELS)],
        },
        DataError,
        ("feature", "scale"),
    ),
    # -- the metric
    ("typo", {"metric": "acuracy"}, ConfigError, ("acuracy", "Did you mean 'accuracy'")),
    ("number", {"metric": 5}, ConfigError, ("int", "a name, a function or a Metric")),
    ("logits", {"metric": scikit_learn}, EvaluationError, ("scikit_learn", "argmax")),
    ("array", {"metric": lambda p, y: p}, EvaluationError, (r"\(6, 4\)", "must return a number")),
    ("None", {"metric": lambda p, y: None}, EvaluationError, ("None", "must return a number")),
    ("text", {"metric": lambda p, y: "good"}, EvaluationError, ("good", "must return a number")),
    ("one argument", {"metric": lambda p: 1.0}, EvaluationError, ("TypeError", "2 were given|predictions")),
    ("no data to score on", {"evaluation": None}, ConfigError, ("evaluation data is missing", "evaluation=")),
    # -- a function of one's own
    (
        "not callable",
        {"evaluate": 0.9, "metric": None},
        ConfigError,
        ("float", "a function that takes the model"),
    ),
    ("two ways", {"evaluate": lambda m: 1.0}, ConfigError, ("metric='accuracy'", "one of them")),
    ("subset ignored", {"evaluate": ignores_subset, "metric": None}, EvaluationError, ("asked for 2", "200")),
    ("None", {"evaluate": lambda m: None, "metric": None}, EvaluationError, ("None", "one number", "return")),
    ("NaN", {"evaluate": lambda m: float("nan"), "metric": None}, EvaluationError, ("nan", "one number")),
    ("tuple", {"evaluate": lambda m: (1.0, 2.0), "metric": None}, EvaluationError, ("tuple", "one number")),
    ("text", {"evaluate": lambda m: "0.9", "metric": None}, EvaluationError, ("'0.9'", "one number")),
    ("no argument", {"evaluate": lambda: 1.0, "metric": None}, ConfigError, (r"evaluate\(model\)", r"\(\)")),
    (
        "two arguments",
        {"evaluate": lambda model, data: 1.0, "metric": None},
        ConfigError,
        (r"evaluate\(model\)", r"\(model, data\)", "partial"),
    ),
    # -- what may be lost
    ("text", {"criterion": "one percent"}, ConfigError, ("'one percent'", "1%")),
    ("200 %", {"criterion": 2.0}, ConfigError, ("Got 2.0", "below 1", "Did you mean 2%")),
    ("truth", {"criterion": True}, ConfigError, ("True", "0.01")),
    ("list", {"criterion": [0.01]}, ConfigError, (r"\[0.01\]", "0.01")),
    ("typo", {"criterion": {"relativ": 0.01}}, ConfigError, ("relativ", "Did you mean 'relative'")),
    ("not a number", {"criterion": float("nan")}, ConfigError, ("nan", "a number")),
    (
        "direction",
        {
            "metric": "mse",
            "evaluation": labelled(torch.zeros(ROWS, CLASSES)),
            "criterion": octune.Relative(0.01),
        },
        ConfigError,
        ("mse", "lower", "higher_is_better=False"),
    ),
    ("certify", {"certify": "yes"}, ConfigError, ("'yes'", "'holdout'")),
    ("certify everything", {"certify": True}, ConfigError, ("True", "'holdout'")),
    # -- the configuration
    ("number", {"config": 5}, ConfigError, ("5", "mapping|file")),
    ("no such file", {"config": "nope.yaml"}, ConfigError, ("nope.yaml does not exist", "Name an existing")),
    ("typo", {"config": {"tunning": {}}}, ConfigError, ("tunning", "Did you mean 'tuning'")),
    ("seconds", {"config": {"tuning": {"timeout": "soon"}}}, ConfigError, ("soon", "a number")),
    ("op", {"config": {"quantization": {"ops": {"fc9": {}}}}}, OctuneError, ("fc9", "0|2")),
    # -- where it works
    ("a file", {"workspace": "file"}, WorkspaceError, ("file", "Choose another folder")),
    ("below a file", {"workspace": "file/run"}, WorkspaceError, ("file", "Choose another folder")),
    # -- who listens
    ("listener", {"listener": print}, ConfigError, ("builtin_function", r"octune\.Listener")),
    ("progress", {"progress": "no"}, ConfigError, ("'no'", "True or False")),
]


def tune(**change: Any) -> octune.Result:
    arguments = {
        "model": network(),
        "calibration": [inputs()],
        "evaluation": GOOD,
        "metric": "accuracy",
        "config": {"performance": {"compile": "never", "iterations": 1, "warmup": 0}},
        **change,
    }
    return octune.tune(arguments.pop("model"), **arguments)


@pytest.mark.parametrize(
    ("name", "change", "kind", "said"), M, ids=[f"{next(iter(c))}: {n}" for n, c, *_ in M]
)
def test_a_mistake_is_told_at_once(
    name: str,
    change: Change,
    kind: type[OctuneError],
    said: tuple[str, ...],
    scored: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    change = dict(change)
    workspace = tmp_path / change.pop("workspace", "run")
    (tmp_path / "file").write_text("")
    config = change.get("config", {})
    if isinstance(config, dict):
        config = {**config, "workspace": {"path": str(workspace)}}
    with pytest.raises(kind) as caught:
        tune(**{**change, "config": config})
    message = str(caught.value)
    for part in said:
        assert re.search(part, message), message
    assert "\n" not in message.strip(), "one line"
    assert scored in ([], [0]), "more than one batch was scored"
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "something was left behind"


def test_a_batch_that_breaks_later_is_named() -> None:
    with pytest.raises(EvaluationError, match="RuntimeError on batch 2 of its data: mat1 and mat2"):
        tune(evaluation=[GOOD[0], GOOD[1], (inputs(6, 5), LABELS)])


def test_more_threads_than_the_machine_has_are_remarked_upon() -> None:
    many = probe_machine().cores + 1
    result = tune(config={"performance": {"threads": many, "iterations": 1, "warmup": 0, "compile": "never"}})
    assert any(f"performance.threads is {many}, and this process may use" in note for note in result.notes)


def test_a_plan_that_is_not_one() -> None:
    with pytest.raises(PlanError, match=r"A plan maps op names to Schemes.*Got 'int8'"):
        octune.quantize(network(), calibration=[inputs()], plan="int8")  # type: ignore[arg-type]


def test_loading_what_is_not_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b")
    saved = tmp_path / "run" / "model"
    saved.mkdir(parents=True)
    (saved / "octune.json").write_text("{}")
    for path, said in {
        "nowhere": "There is no folder .*nowhere. Expected",
        "data.csv": "data.csv is a file. Expected the folder",
        "run": "run is not a saved model: it has no octune.json. Expected .*/run/model\\?",
    }.items():
        with pytest.raises(ArtifactError, match=said):
            octune.load(tmp_path / path)
