"""One small BERT, tuned once as ONNX, and sentences to ask it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import octune
from octune import Result
from tests import zoo

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

Feed = dict[str, npt.NDArray[Any]]
SENTENCES = ["a lovely film", "the story was dull and long"]


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model`` (a Hugging Face folder) and ``glue``."""
    place = tmp_path_factory.mktemp("export")
    zoo.classifier(place / "model", "sst-2", zoo.glue(place / "glue", "sst-2"))
    return place


def configuration(bert: Path, **model: Any) -> dict[str, Any]:
    data = {"task": "sst-2", "folder": str(bert / "glue")}
    return {
        "model": {"path": str(bert / "model"), **model},
        "calibration": {"data": data, "samples": 32},
        "evaluation": {"data": data},
        "criterion": {"relative": 0.1},
        # A model this small is not always faster, and here it is int8 that must be handed over.
        "tuning": {"objective": "modelsize"},
        "performance": {"iterations": 3, "compile": "never"},
    }


@pytest.fixture(scope="session")
def tuned(bert: Path) -> Result:
    """The winner of a run on ONNX."""
    result = octune.tune(config=configuration(bert, target="onnx"))
    assert result.met
    assert result.plan.names("int8")
    return result


@pytest.fixture(scope="session")
def saved(tuned: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned.save(tmp_path_factory.mktemp("saved") / "sentiment")


@pytest.fixture(scope="session")
def saved_openvino(tuned: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as if OpenVINO had been the fastest."""
    pytest.importorskip("openvino")
    from octune.backends.onnx.runtimes import named

    runtime = named("openvino")
    assert runtime is not None
    result = replace(tuned, model=runtime.build(tuned.model.graph, 1))
    return result.save(tmp_path_factory.mktemp("saved") / "sentiment")


@pytest.fixture(scope="session")
def sentences(saved: Path) -> Feed:
    """Tokenized by the saved model's own tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(saved / "huggingface"))
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="np")
    return {name: np.asarray(array) for name, array in encoded.items()}


@pytest.fixture(scope="session")
def answers(saved: Path, sentences: Feed) -> npt.NDArray[Any]:
    """What ``octune.load`` answers."""
    logits: npt.NDArray[Any] = octune.load(saved).run(["logits"], sentences)[0]
    assert logits.argmax(1).tolist() == [1, 0]
    return logits
