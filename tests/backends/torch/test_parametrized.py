"""Weights that a parametrization computes are quantized as what it computes, and saved as plain weights."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import octune
from octune.plan import Plan, Scheme

ROWS = torch.randn(32, 1, 40, generator=torch.Generator().manual_seed(0))


class Speech(nn.Module):
    def __init__(self, older: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the older functions are to go
            weight_norm = nn.utils.weight_norm if older else parametrizations.weight_norm
            spectral_norm = nn.utils.spectral_norm if older else parametrizations.spectral_norm
            self.first = weight_norm(nn.Conv1d(1, 16, 5))
            self.second = spectral_norm(nn.Linear(16, 8))
        self.third = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.third(self.second(self.first(x).relu().mean(-1)).relu())
        return out


@pytest.mark.parametrize("older", [False, True], ids=["parametrizations", "hooks"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trainable", "frozen"])
def test_computed_weights_are_quantized(older: bool, frozen: bool, tmp_path: Path) -> None:
    model = Speech(older).requires_grad_(not frozen)
    model(ROWS)  # leaves a weight behind that autograd knows
    model.eval()
    names = set(model.state_dict())
    with torch.no_grad():
        wanted = model(ROWS)
    plan = Plan({"first": Scheme.int8(), "second": Scheme.int8(), "third": Scheme.fp32()})
    made = octune.quantize(model, calibration=[ROWS], plan=plan)
    with torch.no_grad():
        got = made(ROWS)
    assert 0 < float((got - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
    assert set(model.state_dict()) == names  # the user's own stays as it is
    octune.save(made, tmp_path / "model")
    again = octune.load(tmp_path / "model", factory=lambda: Speech(older))
    with torch.no_grad():
        assert torch.equal(again(ROWS), got)


def test_a_recurrent_layer_takes_the_weights_that_are_computed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(parametrizations.weight_norm(nn.GRU(40, 8), "weight_hh_l0")).eval()
    with torch.no_grad():
        model[0].parametrizations.weight_hh_l0.original0.mul_(3)  # the norms: no longer those it began with
        wanted = model(ROWS)[0]
    made = octune.quantize(model, calibration=[ROWS], plan=Plan({"0": Scheme.int8("dynamic")}))
    with torch.no_grad():
        got = made(ROWS)[0]
    assert 0 < float((got - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
