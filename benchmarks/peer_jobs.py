"""The jobs of peers.py: models, batches and metrics, written as files that tools in other environments read.

with job(CASES["sst2"], place, folder) as made:
    made.score(answers)             # what a tool answered to all evaluation batches -> octune.Score
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octune import Score
from octune.evaluation import Metric, get_metric
from zoo import Missing, Place, imagenet, pytorch

HERE = Path(__file__).parent
TOOLS = HERE / "peer_tools"
sys.path[:0] = [str(HERE / "search"), str(TOOLS)]

__all__ = ["CASES", "TOOLS", "Case", "Job", "Missing", "Place", "written"]

SEED = 0
QUESTIONS = 1000  # of SQuAD: some tools need dozens of evaluations
SEQUENCE = 128


@dataclass(frozen=True)
class Material:
    """What a job is made from: a PyTorch model, batches, and a metric."""

    model: Any
    calibration: Iterable[Any]
    evaluation: Iterable[tuple[Any, Any]]
    metric: Metric


@dataclass(frozen=True)
class Case:
    """One job by name."""

    name: str
    title: str
    material: Callable[[Place | None], Material]


@dataclass(frozen=True)
class Job:
    """A job as files, and how answers to it are scored."""

    folder: Path
    metric: Metric
    labels: list[Any]

    def score(self, answers: Iterable[Mapping[str, Any]]) -> Score:
        """The score of a tool's outputs for every batch."""
        rows: list[Any] = []
        for outputs in answers:
            rows += self.metric.predictions(outputs)
        return self.metric.score(rows, [one for label in self.labels for one in label])


def _text(task: str) -> Callable[[Place | None], Material]:
    def material(place: Place | None) -> Material:
        import torch
        from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

        if place is None:
            raise Missing("--models and --data are needed")
        found = pytorch(place, task)
        kind: Any = AutoModelForQuestionAnswering if task == "squad" else AutoModelForSequenceClassification
        model = kind.from_pretrained(found["model"], dtype=torch.float32)
        return Material(model.eval(), found["calibration"], found["evaluation"], get_metric(found["metric"]))

    return material


def _squad(place: Place | None) -> Material:
    """The first questions only, with all their windows: a folder with less of the official file."""
    if place is None:
        raise Missing("--models and --data are needed")
    whole = place.folder("squad")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        (data / "squad").mkdir()
        for stem in ("train", "dev"):
            file = next(iter(sorted(whole.glob(f"{stem}*v1.1*.json"))), None)
            if file is None:
                raise Missing(f"{whole} lacks {stem}-v1.1.json")
            (data / "squad" / file.name).write_text(
                json.dumps(_first(json.loads(file.read_text()), QUESTIONS))
            )
        return _text("squad")(Place(place.models, data))


def _first(squad: dict[str, Any], most: int) -> dict[str, Any]:
    """SQuAD's format with this many questions."""
    left = most
    articles = []
    for article in squad["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            kept = paragraph["qas"][:left]
            left -= len(kept)
            if kept:
                paragraphs.append(paragraph | {"qas": kept})
        if paragraphs:
            articles.append(article | {"paragraphs": paragraphs})
    return squad | {"data": articles}


def _images(place: Place | None) -> Material:
    if place is None:
        raise Missing("--data is needed")
    found = imagenet(place, "imagenet")
    return Material(
        found["model"].eval(), found["calibration"], found["evaluation"], get_metric(found["metric"])
    )


def _stress(name: str) -> Callable[[Place | None], Material]:
    def material(_: Place | None) -> Material:
        from cases import CASES as STRESS

        case = STRESS[name](SEED)
        return Material(case.model.eval(), case.calibration, case.evaluation, get_metric("accuracy"))

    return material


CASES = {
    case.name: case
    for case in (
        Case("sst2", "MiniLM on SST-2", _text("sst2")),
        Case("mrpc", "MiniLM on MRPC", _text("mrpc")),
        Case("stsb", "MiniLM on STS-B", _text("stsb")),
        Case("squad", f"MiniLM on SQuAD, its first {QUESTIONS:,} questions", _squad),
        Case("imagenet", "EfficientNet-Lite0 on ImageNet", _images),
        Case("cnn", "stress case: convolutions with outliers", _stress("cnn")),
        Case("transformer", "stress case: transformer with outliers", _stress("transformer")),
    )
}


def written(case: Case, place: Place | None, folder: Path) -> Job:
    """The files of a job. Tools that share this environment also find the metric and the labels."""
    import onnx
    import torch
    from job import save_arrays

    from octune.backends.torch.to_onnx import to_onnx

    material = case.material(place)
    calibration = [_inputs(batch) for batch in material.calibration]
    evaluation = [(_inputs(batch), np.asarray(label)) for batch, label in material.evaluation]
    model = to_onnx(material.model, _tensors(calibration[0]))
    model.ir_version = min(model.ir_version, 9)  # what older runtimes can read
    onnx.save(model, str(folder / "fp32.onnx"))
    names = [port.name for port in model.graph.input]

    def named(inputs: Mapping[str, Any]) -> dict[str, Any]:
        alone = {names[0]: next(iter(inputs.values()))}
        return alone if len(names) == 1 else {name: inputs[name] for name in names}

    save_arrays(folder / "calibration.npz", map(named, calibration))
    save_arrays(folder / "evaluation.npz", (named(inputs) for inputs, _ in evaluation))
    save_arrays(folder / "timing.npz", iter([_one(named(calibration[0]))]))
    labels = [label for _, label in evaluation]
    torch.save(material.model, folder / "model.pt")
    torch.save({"metric": material.metric, "labels": labels}, folder / "own.pt")
    return Job(folder, material.metric, labels)


def _inputs(batch: Any) -> dict[str, Any]:
    """The arrays of a batch, without its label."""
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    named = inputs if isinstance(inputs, Mapping) else {"x": inputs}
    return {name: np.asarray(array) for name, array in named.items()}


def _one(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is timed: one row; of text, as many tokens as SEQUENCE, all of them real."""
    rows = {name: array[:1] for name, array in inputs.items()}
    if "input_ids" not in rows:
        return rows
    times = -(-SEQUENCE // rows["input_ids"].shape[1])
    tokens = {name: np.tile(array, (1, times))[:, :SEQUENCE] for name, array in rows.items()}
    return tokens | {"attention_mask": np.ones_like(tokens["attention_mask"])}


def _tensors(inputs: Mapping[str, Any]) -> Any:
    import torch

    made = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return made if len(made) > 1 else next(iter(made.values()))
