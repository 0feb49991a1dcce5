"""No metric and no evaluate function: agreement with fp32 is the criterion, and that is said loudly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import octune
from octune.errors import ConfigError, EvaluationError
from tests.digits import config, digits, network
from tests.foreign import export


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    return list(torch.cat([digits().train, digits().test])[:960].split(60))


def encoder() -> nn.Module:
    """Gives 64 numbers: as wide as an embedding."""
    torch.manual_seed(0)
    return network()[:3].eval()


def test_a_classifier_is_judged_by_the_answers_that_flip(batches: list[Any]) -> None:
    result = octune.tune(digits().model(), calibration=batches[:4], evaluation=batches[4:], config=config())
    assert result.baseline.score is not None
    assert result.baseline.score.value == 1.0
    tried = result.trials[0]
    assert tried.score is not None
    assert tried.verdict is not None
    assert 0.8 < tried.score.value <= 1.0
    assert tried.verdict.gained == 0
    assert "NO LABELS" in str(result)
    assert "same class as fp32" in str(result)


def test_embeddings_are_judged_by_their_direction(batches: list[Any]) -> None:
    result = octune.tune(encoder(), calibration=batches[:4], evaluation=batches[4:], config=config())
    assert "cosine with fp32" in str(result)
    assert result.trials[0].score is not None
    assert result.trials[0].score.value > 0.99


def test_without_evaluation_data_half_of_the_calibration_data_judges(batches: list[Any]) -> None:
    result = octune.tune(digits().model(), calibration=batches, config=config())
    assert result.baseline.score is not None
    assert result.baseline.score.n == 480
    assert "every second calibration batch judges" in str(result)


def test_labels_in_the_data_are_not_looked_at(batches: list[Any]) -> None:
    wrong = [(batch, torch.zeros(len(batch), dtype=torch.long)) for batch in batches[4:]]
    result = octune.tune(digits().model(), calibration=batches[:4], evaluation=wrong, config=config())
    assert result.baseline.score is not None
    assert result.baseline.score.value == 1.0


def test_a_model_that_int8_breaks_does_not_pass(batches: list[Any]) -> None:
    model: Any = digits().model()
    # two features that only ever cancel: fp32 says the same, the range of int8 is theirs
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1], model[0].bias[0] = (
            model[0].weight[0],
            model[0].bias[0] + 3e4,
            model[0].bias[0] + 3e4,
        )
        model[2].weight[:, 1] = -model[2].weight[:, 0]
    options = {**config(strategy="basic"), "quantization": {"activation": {"algorithm": "minmax"}}}
    result = octune.tune(
        model, calibration=batches[:4], evaluation=batches[4:], metric="agreement", config=options
    )
    first = result.trials[0]
    assert first.verdict is not None
    assert not first.verdict.passed
    assert (first.verdict.lost or 0) > 5


def test_with_no_data_at_all_there_is_nothing_to_compare_on() -> None:
    with pytest.raises(ConfigError, match="no way to score"):
        octune.tune(digits().model())


class Recurrent(nn.Module):
    """Gives its next state beside its answer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.answer = nn.Linear(72, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.step(torch.cat([x, state], -1)))
        return {"stateN": hidden, "output": torch.sigmoid(self.answer(hidden))}


@pytest.fixture(scope="module")
def steps(batches: list[Any]) -> list[Any]:
    return [{"x": rows, "state": torch.zeros(len(rows), 8)} for rows in batches]


def test_the_state_of_a_recurrent_model_is_not_its_answer(steps: list[Any]) -> None:
    result = octune.tune(Recurrent(), calibration=steps[:4], evaluation=steps[4:], config=config())
    assert "what is compared: output: distance to fp32" in str(result)
    assert "not compared: stateN (state or a cache" in str(result)
    assert result.baseline.score is not None
    assert result.baseline.score.n == 12 * 60


def test_outputs_can_be_chosen(steps: list[Any]) -> None:
    options = {**config(), "evaluation": {"outputs": "output"}}
    result = octune.tune(Recurrent(), calibration=steps[:4], evaluation=steps[4:], config=options)
    assert "what is compared: output: distance to fp32" in str(result)
    assert "not compared" not in str(result)
    options["evaluation"] = {"outputs": ["logits"]}
    with pytest.raises(EvaluationError, match=r"names logits; the model has stateN, output"):
        octune.tune(Recurrent(), calibration=steps[:4], evaluation=steps[4:], config=options)
    with pytest.raises(ConfigError, match=r"evaluation.outputs .* evaluate="):
        octune.tune(Recurrent(), calibration=steps[:4], evaluate=lambda model: 1.0, config=options)


class Listening(nn.Module):
    """Takes and gives the state of its recurrent layers, whose samples are along the second axis."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.layers, self.answer = nn.Linear(8, 32), nn.LSTM(32, 24, 2), nn.Linear(24, 5)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen, (h, c) = self.layers(self.before(x).relu().transpose(0, 1), (h, c))
        return self.answer(seen[-1]), h, c


@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize("form", ["module", "onnx"])
def test_batches_of_recurrent_state_are_cut_along_its_samples(form: str, rows: int, tmp_path: Path) -> None:
    model: Any = Listening().eval()
    chance = torch.Generator().manual_seed(0)

    def batch() -> dict[str, torch.Tensor]:
        state = {name: 0.1 * torch.randn(2, rows, 24, generator=chance) for name in ("h", "c")}
        return {"x": torch.randn(rows, 6, 8, generator=chance), **state}

    data = [batch() for _ in range(72 // rows)]
    if form == "onnx":
        names = {"input_names": ["x", "h", "c"], "output_names": ["logits", "hn", "cn"]}
        free = {"x": {0: "rows"}, **{name: {1: "rows"} for name in ("h", "c", "hn", "cn")}}
        export(model, tuple(data[0].values()), tmp_path / "model.onnx", dynamic_axes=free, **names)
        model = str(tmp_path / "model.onnx")
    result = octune.tune(
        model, calibration=data[: len(data) // 3], evaluation=data[len(data) // 3 :], criterion="10%",
        config=config(),
    )  # fmt: skip
    assert result.met
    assert result.plan.counts()["int8"] >= 2
    assert result.baseline.score is not None
    assert result.baseline.score.n == 48
