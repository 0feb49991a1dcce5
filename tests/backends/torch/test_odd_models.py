"""Models that are not in float32, which are run as if they were, and models of TorchScript, which are
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import octune
from octune.backends import Settings, backend_for
from octune.backends.torch.batches import Trying
from octune.errors import ModelError
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan
from tests.backends.torch.models import image_batches, small_cnn

EAGER = {"performance": {"compile": "never"}, "criterion": {"relative": 0.1}}
INT8 = Plan({"0": Scheme.int8("static"), "2": Scheme.int8("static")})


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()


def rows() -> torch.Tensor:
    return torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


class Parts(nn.Module):
    """A model one part of which is a script."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.jit.script(network())
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


class Listed(nn.Module):
    """Takes its inputs in a list, as detection models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, items: list[torch.Tensor], scales: dict[str, torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = self.body(torch.stack(items) * scales["all"])
        return out


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor
    count: int


class Answering(nn.Module):
    """Returns an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(self.body(x), self.body[0](x), len(x))


def test_a_model_that_returns_an_object_is_tuned() -> None:
    config = {**EAGER, "tuning": {"objective": "modelsize"}}
    result = octune.tune(Answering(), calibration=[rows()], evaluation=[rows()] * 2, config=config)
    assert result.met, str(result)
    assert result.plan.counts()["int8"] > 0
    with torch.inference_mode():
        assert isinstance(result.model(rows()), Answer)


@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "call", [octune.tune, octune.quantize, octune.analyze], ids=lambda call: call.__name__
)
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: torch.jit.script(network()), r"^The model is a torch\.jit\.ScriptModule"),
        (lambda: torch.jit.trace(network(), rows()), r"^The model is a torch\.jit\.ScriptModule"),
        (Parts, r"^The model's part 'body' is a torch\.jit\.ScriptModule"),
    ],
    ids=["scripted", "traced", "in part"],
)
def test_scripts_are_refused(call: Callable[..., Any], make: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(
        ModelError, match=rf"{named}.* give the one that was scripted or traced, or export the model to ONNX"
    ):
        call(make(), calibration=[rows()])


@pytest.mark.parametrize("given", [torch.float64, torch.float32], ids=str)
def test_a_float64_model_is_quantized_as_its_float32_self(given: torch.dtype) -> None:
    """Both of its data's types lead to the same model, and that one takes both."""
    model = network().double()
    made = octune.quantize(model, calibration=[rows().to(given)], plan=INT8)
    wanted = octune.quantize(network(), calibration=[rows()], plan=INT8)
    with torch.inference_mode():
        for inputs in (rows(), rows().double()):
            assert torch.equal(made(inputs), wanted(rows()))
        assert (made(rows()) - model(rows().double())).abs().max() < 0.05
    # the user's own stays as it is
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.slow
def test_a_float64_model_is_tuned_with_float64_data() -> None:
    model = network().double()
    with torch.inference_mode():
        labels = model(rows().double()).argmax(dim=1)
    seen: set[torch.dtype] = set()

    def evaluate(candidate: nn.Module) -> float:
        with torch.inference_mode():
            outputs = candidate(rows().double())
        seen.add(outputs.dtype)
        return float((outputs.argmax(dim=1) == labels).double().mean())

    result = octune.tune(model, calibration=[(rows().double(), labels)], evaluate=evaluate, config=EAGER)
    assert result.met, str(result)
    assert any(trial.score is not None for trial in result.trials)
    assert seen == {torch.float32}
    assert any(note.startswith("the weights were float64") for note in result.notes)


@pytest.mark.slow
def test_a_float64_model_is_scored_by_a_metric() -> None:
    model = network().double()
    with torch.inference_mode():
        labels = model(rows().double()).argmax(dim=1)
    data = [(rows().double(), labels)]
    result = octune.tune(model, calibration=data, evaluation=data, metric="accuracy", config=EAGER)
    assert result.baseline.score is not None
    assert result.baseline.score.value == 1.0


def test_a_float64_model_with_batchnorms_is_float32_throughout() -> None:
    images = image_batches(1)[0][0]
    backend = backend_for(small_cnn().double(), Settings())
    assert {
        tensor.dtype for tensor in backend.fp32_model().state_dict().values() if tensor.is_floating_point()
    } == {torch.float32}
    ranges = calibrated(backend, [images.double()])
    made = backend.apply(int8_plan(backend, ranges), ranges)
    with torch.inference_mode():
        assert torch.equal(made(images.double()), made(images))


def test_inputs_inside_lists_and_dicts_are_cast_too() -> None:
    backend = backend_for(Listed().double(), Settings())
    items = list(rows()[:8].double())
    outputs = backend.fp32_model()(items, scales={"all": torch.ones((), dtype=torch.float64)})
    assert outputs.dtype is torch.float32
    assert items[0].dtype is torch.float64


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_of_any_width_reach_the_model_as_float32(dtype: str) -> None:
    split = Trying(network())
    for batch in (rows().to(getattr(torch, dtype)), rows().numpy().astype(dtype)):
        assert split(batch)[0].args[0].dtype is torch.float32


def test_whole_numbers_keep_their_type() -> None:
    split = Trying(nn.Embedding(8, 4))
    for batch in (torch.arange(4), np.arange(4)):
        assert split(batch)[0].args[0].dtype is torch.int64
