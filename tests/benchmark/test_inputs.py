"""Inputs made from what a model says of itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from octune.benchmark.inputs import MadeInputs
from octune.errors import DataError
from octune.opening import open_model
from tests.backends.onnx import models as onnx_models
from tests.backends.torch.models import tiny_bert


def made(model: Any, batch: int, sequence: int | None = None) -> dict[str, Any]:
    """The inputs by name, after the model has run on them."""
    with closing(open_model(model)) as opened:
        inputs = MadeInputs(opened)(batch, sequence)
        opened.run(inputs)
        return {**dict(enumerate(inputs.args)), **inputs.kwargs}


@pytest.mark.parametrize("form", ["hugging face", "onnx"])
def test_tokens_lie_in_the_vocabulary_and_nothing_is_masked(form: str, tmp_path: Path) -> None:
    model: Any = tiny_bert()
    if form == "onnx":
        model = tmp_path / "bert.onnx"
        onnx.save(onnx_models.bert(), str(model))
    found = {name: np.asarray(value) for name, value in made(model, 3, 20).items()}
    ids = found["input_ids"]
    assert ids.shape == found["attention_mask"].shape == (3, 20)
    assert 100 < ids.max() < 200  # it has 200 words
    assert ids.min() >= 0
    assert (found["attention_mask"] == 1).all()


def test_the_default_length_is_one_that_the_model_has() -> None:
    with closing(open_model(tiny_bert())) as opened:
        make = MadeInputs(opened)
        assert make.length(None) == 64
        assert make(2, None).kwargs["input_ids"].shape == (2, 64)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(7, 2)), (2, 7)),
        (nn.Conv2d(3, 4, 3), (2, 3, 224, 224)),
        (nn.Conv1d(3, 4, 3), (2, 3, 128)),
        (nn.Embedding(5, 4), (2, 128)),
    ],
)
def test_one_input_is_judged_by_the_first_layer(module: nn.Module, shape: tuple[int, ...]) -> None:
    (value,) = made(module, 2).values()
    assert tuple(value.shape) == shape


def test_the_same_inputs_for_the_same_size() -> None:
    first, second = (made(nn.Linear(7, 2), 4)["input"] for _ in range(2))
    assert torch.equal(first, second)


def test_a_length_that_the_model_cannot_have_is_refused(tmp_path: Path) -> None:
    with closing(open_model(nn.Linear(7, 2))) as opened, pytest.raises(DataError, match="takes no sequences"):
        MadeInputs(opened)(1, 16)
    fixed = onnx.ModelProto.FromString(onnx_models.bert().SerializeToString())
    for item in fixed.graph.input:
        item.type.tensor_type.shape.dim[1].dim_value = 12
    onnx.save(fixed, str(tmp_path / "fixed.onnx"))
    with closing(open_model(tmp_path / "fixed.onnx")) as opened:
        make = MadeInputs(opened)
        assert make.length(None) == 12
        with pytest.raises(DataError, match="sequences of 12 only, not of 16"):
            make(1, 16)
