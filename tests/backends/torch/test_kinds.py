"""Kinds of modules: what each offers, and what replaces it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import (
    GRU,
    KINDS,
    LAYERS,
    LSTM,
    Conv1d,
    Conv2d,
    Conv3d,
    Embedding,
    EmbeddingBag,
    Kind,
    Linear,
    PlainRNN,
    TransposedLinear,
    kind_of,
)
from octune.calibration import Observer, TensorStats
from octune.errors import PlanError
from octune.int8 import Limit
from octune.plan import Scheme


def observed(x: torch.Tensor, axis: int = -1) -> TensorStats:
    observer = Observer()
    observer.update(x.numpy(), channel_axis=axis)
    return observer.stats()


def test_saved_models_find_their_layers_under_these_names() -> None:
    assert set(LAYERS) == {
        "int8_linear",
        "int8_dynamic_linear",
        "int8_token_linear",
        "int8_conv1d",
        "int8_conv2d",
        "int8_conv3d",
        "int8_conv_transpose1d",
        "int8_conv_transpose2d",
        "int8_conv_transpose3d",
        "int8_embedding",
        "int8_embedding_bag",
        "int8_lstm",
        "int8_gru",
        "int8_rnn",
        "bf16_linear",
        "bf16_conv1d",
        "bf16_conv2d",
        "bf16_conv3d",
        "bf16_conv_transpose1d",
        "bf16_conv_transpose2d",
        "bf16_conv_transpose3d",
        "bf16_embedding",
        "bf16_embedding_bag",
    }
    assert {name for name, layer in LAYERS.items() if layer.multiplies_int8} == {
        "int8_linear",
        "int8_dynamic_linear",
        "int8_token_linear",
        "int8_conv1d",
        "int8_conv2d",
        "int8_conv3d",
        "int8_conv_transpose1d",
        "int8_conv_transpose2d",
        "int8_conv_transpose3d",
        "int8_lstm",
        "int8_gru",
        "int8_rnn",
    }


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(2, 2), Linear),
        (Conv1D(2, 2), TransposedLinear),
        (nn.Conv1d(2, 2, 1), Conv1d),
        (nn.Conv2d(2, 2, 1), Conv2d),
        (nn.Conv3d(2, 2, 1), Conv3d),
        (nn.Embedding(2, 2), Embedding),
        (nn.EmbeddingBag(2, 2), EmbeddingBag),
        (nn.LSTM(2, 2), LSTM),
        (nn.GRU(2, 2), GRU),
        (nn.RNN(2, 2), PlainRNN),
        (nn.GRUCell(2, 2), type(None)),
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
