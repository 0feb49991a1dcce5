"""Kinds of modules: what each offers, what replaces it, and that another one is a few lines."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from octune.backends import Settings
from octune.backends.torch import TorchBackend, kinds
from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import (
    KINDS,
    LAYERS,
    Conv2d,
    Embedding,
    Kind,
    Linear,
    TransposedLinear,
    kind_of,
)
from octune.backends.torch.kinds.conv import Bf16Conv, Conv, Int8Conv
from octune.calibration import Observer, TensorStats
from octune.errors import PlanError
from octune.int8 import Limit
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated


def observed(x: torch.Tensor, axis: int = -1) -> TensorStats:
    observer = Observer()
    observer.update(x.numpy(), channel_axis=axis)
    return observer.stats()


def test_saved_models_find_their_layers_under_these_names() -> None:
    assert set(LAYERS) == {
        "int8_linear",
        "int8_dynamic_linear",
        "int8_conv2d",
        "int8_embedding",
        "bf16_linear",
        "bf16_conv2d",
        "bf16_embedding",
    }
    assert {name for name, layer in LAYERS.items() if layer.multiplies_int8} == {
        "int8_linear",
        "int8_dynamic_linear",
        "int8_conv2d",
    }


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(2, 2), Linear),
        (Conv1D(2, 2), TransposedLinear),
        (nn.Conv2d(2, 2, 1), Conv2d),
        (nn.Embedding(2, 2), Embedding),
        (nn.Conv1d(2, 2, 1), type(None)),
        (nn.LayerNorm(2), type(None)),
    ],
)
def test_a_module_is_of_one_kind_or_of_none(module: nn.Module, kind: type) -> None:
    assert type(kind_of(module)) is kind
    assert sum(kind.recognises(module) for kind in KINDS) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_scheme_has_its_layer(kind: type[Kind]) -> None:
    schemes = kind.schemes()
    assert len(set(schemes)) == len(schemes)
    assert {scheme.mode or scheme.dtype for scheme in schemes} == {*kind.layers, "fp32"}


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (Conv2d(nn.Conv2d(2, 2, 1)), Scheme.int8("dynamic")),
        (Embedding(nn.Embedding(2, 2)), Scheme.int8()),
        (Linear(nn.Linear(2, 2)), Scheme.int8("weight")),
    ],
)
def test_a_scheme_that_a_kind_does_not_have_is_refused(kind: Kind, scheme: Scheme) -> None:
    with pytest.raises(PlanError, match=f"kind {kind.name} cannot run as {scheme}"):
        kind.layer(scheme, observed(torch.randn(2, 2)), limit=Limit.NONE)


@pytest.mark.parametrize("scheme", [Scheme.int8(), Scheme.int8("dynamic"), Scheme.bf16()])
def test_a_transposed_linear_is_the_linear_with_its_weight_transposed(scheme: Scheme) -> None:
    torch.manual_seed(0)
    x, transposed, linear = torch.randn(6, 8), Conv1D(16, 8).requires_grad_(False), nn.Linear(8, 16)
    linear.requires_grad_(False).weight.copy_(transposed.weight.t())
    linear.bias.copy_(transposed.bias)
    a, b = (
        kind.layer(scheme, observed(x), limit=Limit.NONE)
        for kind in (TransposedLinear(transposed), Linear(linear))
    )
    assert torch.equal(a(x), b(x))


@pytest.mark.parametrize("scheme", [Scheme.int8(), Scheme.int8("dynamic"), Scheme.bf16()])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_its_settings_and_its_tensors(scheme: Scheme, bias: bool) -> None:
    """What a saved model holds: without a bias there is no such tensor."""
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    layer = Linear(nn.Linear(8, 4, bias=bias).requires_grad_(False)).layer(
        scheme, observed(x), limit=Limit.NONE
    )
    again = LAYERS[layer.kind](**layer.settings).set_tensors(**layer.state_dict())
    assert torch.equal(layer(x), again(x))
    assert set(layer.settings) == ({"scale", "zero_point"} if scheme.mode == "static" else set())


def test_hooks_go_whatever_happens() -> None:
    module, seen = nn.Linear(2, 2), list[Any]()
    handle = module.register_forward_hook(lambda *args: seen.append(args))
    with pytest.raises(KeyError), hooks([handle]):
        raise KeyError(module(torch.ones(1, 2)))
    module(torch.ones(1, 2))
    assert len(seen) == 1


class Int8Conv1d(Int8Conv):
    kind = "int8_conv1d"
    rank = 1
    layout = torch.contiguous_format


class Bf16Conv1d(Bf16Conv):
    kind = "bf16_conv1d"
    convolve = staticmethod(F.conv1d)


class Conv1d(Conv):
    name = "conv1d"
    plain = nn.Conv1d
    layers: ClassVar = {"static": Int8Conv1d, "bf16": Bf16Conv1d}
    batchnorm = nn.BatchNorm1d


class PadsBehind(nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (0, 2)))


def test_another_kind_is_a_class_and_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found, folded, observed, timed, measured and applied, and nothing else of the backend knows of it."""
    monkeypatch.setattr(kinds, "KINDS", (*KINDS, Conv1d))
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)
    norm.running_mean, norm.running_var = torch.randn(16), torch.rand(16) + 0.5  # type: ignore[assignment]
    model = nn.Sequential(
        nn.Conv1d(4, 16, 3, stride=2), norm, nn.ReLU(), PadsBehind(16, 8, 3, groups=2)
    ).eval()
    backend = TorchBackend(model, Settings())
    batches = [torch.randn(4, 4, 21) for _ in range(2)]
    ranges = calibrated(backend, batches)
    assert [op.kind for op in backend.ops()] == ["conv1d", "conv1d"]
    assert any("1 BatchNorm" in note for note in backend.notes)
    call = backend.split(batches[0])[0]
    (wanted,) = backend.run(backend.fp32_model(), call).values()
    schemes = [scheme for scheme in backend.ops()[0].schemes if scheme.dtype != "fp32"]
    harms = backend.harm({"0": schemes, "3": schemes}, ranges, [call])
    for scheme in schemes:
        made = backend.apply(Plan(dict.fromkeys(("0", "3"), scheme)), ranges)
        (got,) = backend.run(made, call).values()
        assert abs(got - wanted).max() < 0.05 * abs(wanted).max()
        assert all(harms[name, scheme] < 1e-3 for name in ("0", "3"))
        assert all(backend.alone(op, scheme, ranges)() is not None for op in backend.ops())
