"""A PyTorch model on OpenVINO: the same plan, the same face, saved and loaded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import octune
from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.backends.torch.openvino import OpenVinoModule
from octune.calibration import Ranges
from octune.errors import UnsupportedError
from octune.plan import Plan
from tests.backends.contract import calibrated, int8_plan
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches

pytest.importorskip("openvino")
pytest.importorskip("onnx")


class Made:
    """A model, its int8 plan eager and on OpenVINO, and a call."""

    def __init__(self, model: nn.Module, batches: list[Any]) -> None:
        self.backend = TorchBackend(model, Settings(forms=("openvino",)))
        self.ranges = calibrated(self.backend, batches)
        self.plan = int8_plan(self.backend, self.ranges)
        self.call = self.backend.split(batches[0])[0]
        self.eager = self.backend.apply(self.plan, self.ranges)
        self.forms = list(self.backend.finalists(self.plan, self.ranges, self.call))

    @property
    def model(self) -> OpenVinoModule:
        (form,) = self.forms
        assert form.form == "openvino"
        return form.model


@pytest.fixture(scope="module")
def bert() -> Made:
    return Made(tiny_bert(), token_batches())


def close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return got.shape == wanted.shape and bool((got - wanted).abs().max() < 0.1 * wanted.abs().max())


def test_it_answers_as_eager_int8_does_in_the_same_shape_of_answer(bert: Made) -> None:
    for rows, length in ((8, 12), (3, 33)):
        call = bert.backend.split(token_batches(1, rows, length)[0])[0]
        got, wanted = call(bert.model), call(bert.eager)
        assert type(got) is type(wanted)
        assert close(got.logits, wanted.logits)
    assert bert.model.config is bert.model.eager.config
    fp32 = bert.call(bert.backend.fp32_model()).logits
    assert not torch.equal(bert.call(bert.model).logits, fp32)


def test_it_runs_on_openvino_and_other_calls_do_not(bert: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(bert.model)
    bert.call(model)  # now it knows the shape of an answer
    calls: list[str] = []
    model.eager.register_forward_hook(lambda *_: calls.append("eager"))
    bert.call(model)
    assert calls == []
    ids = bert.call.kwargs["input_ids"]
    model(ids)
    model(**{**bert.call.kwargs, "input_ids": ids.int()})
    assert calls == ["eager", "eager"]


def test_saved_it_is_on_openvino_again(bert: Made, tmp_path: Path) -> None:
    metadata = bert.backend.writer()(bert.model, tmp_path)
    assert (tmp_path / "openvino" / "openvino.xml").exists()
    loaded = bert.backend.load(tmp_path, metadata)
    assert isinstance(loaded, OpenVinoModule)
    for _ in range(2):
        np.testing.assert_allclose(
            bert.call(loaded).logits.numpy(), bert.call(bert.model).logits.numpy(), rtol=1e-4, atol=1e-5
        )
    assert 0 < bert.backend.size(bert.model) < bert.backend.size(bert.backend.fp32_model())


def test_a_convolutional_net_and_its_fp32() -> None:
    made = Made(small_cnn(), image_batches())
    assert close(made.call(made.model), made.call(made.eager))
    (fp32,) = made.backend.finalists(Plan(), Ranges(), made.call)
    wanted = made.call(made.backend.fp32_model())
    assert (made.call(fp32.model) - wanted).abs().max() < 1e-4 * wanted.std()


class Pair(nn.Module):
    """Returns a tuple, and takes what may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        hidden = self.first(x).relu()
        return hidden, self.second(hidden)


def test_a_tuple_stays_a_tuple_and_a_program_stands_behind_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = Made(Pair().eval(), [torch.randn(4, 8)])
    got, wanted = made.call(made.model), made.call(made.eager)
    assert isinstance(got, tuple)
    assert all(close(*pair) for pair in zip(got, wanted, strict=True))
    loaded = made.backend.load(tmp_path, made.backend.writer()(made.model, tmp_path))
    assert isinstance(loaded, OpenVinoModule)
    for _ in range(2):
        again = made.call(loaded)
        assert isinstance(again, tuple)
        assert all(close(*pair) for pair in zip(again, wanted, strict=True))


def test_what_has_no_form_there_is_a_note() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return {"both": (self.linear(x), x)}

    backend = TorchBackend(Nested().eval(), Settings(forms=("openvino",)))
    call = Inputs((torch.randn(4, 8),))
    assert list(backend.finalists(Plan(), Ranges(), call)) == []
    assert "the model was not tried on OpenVINO: the model returns more than tensors" in backend.notes


def test_a_run_tries_the_winner_there_and_fp32_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 8)).eval()
    result = octune.tune(
        model,
        calibration=[torch.randn(16, 256) for _ in range(3)],
        evaluate=lambda model: 1.0,
        config={
            "performance": {"forms": ["openvino"], "compare_fp32": "always"},
            "tuning": {"objective": "modelsize"},
            "workspace": {"path": tmp_path},
        },
        progress=False,
    )
    assert "fp32 (openvino)" in result.floats
    assert any(trial.form == "openvino" for trial in result.trials) or any(
        "the openvino form is not clearly faster" in note for note in result.notes
    )
    again = octune.replay(tmp_path, rebuild=True, model=model)
    assert type(again.model) is type(result.model)


def test_forms_of_other_frameworks_are_refused() -> None:
    model, data = nn.Linear(4, 2), [torch.randn(4, 4)]
    with pytest.raises(UnsupportedError, match=r"performance\.forms has litert.*native, openvino"):
        octune.tune(
            model,
            calibration=data,
            evaluate=lambda model: 1.0,
            config={"performance": {"forms": ["litert"]}},
            progress=False,
        )
