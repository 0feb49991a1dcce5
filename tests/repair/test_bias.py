"""Bias correction takes off what rounding the weights adds on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends.torch.kinds import Conv2d, Linear
from octune.calibration import Observer, TensorStats
from octune.int8 import Limit
from octune.plan import Scheme
from octune.repair import BIAS, SMOOTH
from octune.repair.bias import bias_correction

PER_TENSOR = Scheme.int8(granularity="per_tensor")


def observed(x: np.ndarray, channel_axis: int) -> TensorStats:
    observer = Observer()
    for part in np.array_split(x, 3):
        observer.update(part, channel_axis=channel_axis)
    stats = observer.stats()
    assert stats is not None
    return stats


def case(kind: str, bias: bool) -> tuple[nn.Module, torch.Tensor, TensorStats]:
    """An op whose input is far from zero on average, and whose weights round badly: one is a hundred times
    larger than the others.
    """
    torch.manual_seed(0)
    if kind == "linear":
        module, x, axis = nn.Linear(64, 32, bias=bias), torch.rand(300, 64) + 1, -1
    else:
        module, x, axis = (
            nn.Conv2d(16, 24, 3, bias=bias, groups={"conv2d": 1, "grouped": 4}[kind]),
            torch.rand(6, 16, 8, 8) + 1,
            1,
        )
    with torch.no_grad():
        weight = module.get_parameter("weight")
        weight.view(-1)[0] = 100 * weight.abs().max()
    return module.requires_grad_(False), x, observed(x.numpy(), axis)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "conv2d", "grouped"])
def test_the_mean_of_every_output_is_put_right(kind: str, bias: bool) -> None:
    module, x, stats = case(kind, bias)
    axes = (0,) if kind == "linear" else (0, 2, 3)

    def shift(repairs: tuple[str, ...]) -> float:
        scheme = Scheme.int8(granularity="per_tensor", repairs=repairs)
        layer = (Linear if kind == "linear" else Conv2d)(module).layer(scheme, stats, limit=Limit.PAIRS)
        return float((layer(x) - module(x)).mean(dim=axes).abs().max())

    assert shift(()) > 0.1, "the case is meant to be hard"
    assert shift((BIAS.name,)) < 0.1 * shift(())


def test_it_goes_together_with_smoothing() -> None:
    module, x, stats = case("linear", True)
    schemes = (Scheme.int8(repairs=repairs) for repairs in ((SMOOTH.name,), (SMOOTH.name, BIAS.name)))
    plain, both = (Linear(module).layer(scheme, stats, limit=Limit.PAIRS) for scheme in schemes)
    assert torch.equal(plain.weight, both.weight)
    wanted = module(x)
    assert (both(x) - wanted).mean(dim=0).abs().sum() < (plain(x) - wanted).mean(dim=0).abs().sum()


def test_exact_weights_need_no_correction() -> None:
    weight = np.arange(12.0).reshape(3, 4)
    stats = observed(np.ones((6, 4), np.float32), -1)
    assert not bias_correction(stats, weight, weight).any()
    assert bias_correction(stats, weight, weight - 1) == pytest.approx(np.full(3, 4.0))


def test_without_means_there_is_no_correction() -> None:
    observer = Observer()
    observer.touch((3, 4))
    stats = observer.stats()
    assert stats is not None
    assert not bias_correction(stats, np.ones((3, 4)), np.zeros((3, 4))).any()
