"""Smoothing keeps the product and tames outlier channels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from octune.backends.torch.kinds import Conv2d, Linear
from octune.calibration import Observer, TensorStats
from octune.errors import PlanError
from octune.int8 import Limit
from octune.plan import Scheme
from octune.repair import SMOOTH
from octune.repair.smooth import shared_smoothing, smoothing

PLAIN, SMOOTHED = Scheme.int8(), Scheme.int8(repairs=(SMOOTH.name,))


def observed(x: np.ndarray) -> TensorStats:
    observer = Observer()
    observer.update(x)
    stats = observer.stats()
    assert stats is not None
    return stats


def case(factor: float, seed: int = 0) -> tuple[nn.Linear, torch.Tensor]:
    """A linear whose input has three channels ``factor`` times as large as the others, and weights that make
    up for it.
    """
    generator = torch.Generator().manual_seed(seed)
    linear, x = nn.Linear(64, 32).requires_grad_(False), torch.randn(256, 64, generator=generator)
    linear.weight.copy_(torch.randn(32, 64, generator=generator) / 8)
    x[:, :3] *= factor
    linear.weight[:, :3] /= factor
    return linear, x


def error(linear: nn.Linear, x: torch.Tensor, scheme: Scheme) -> float:
    layer = Linear(linear).layer(scheme, observed(x.numpy()), limit=Limit.PAIRS)
    return float((layer(x) - linear(x)).square().mean() / linear(x).var())


def test_it_repairs_what_outliers_break() -> None:
    linear, x = case(300.0)
    assert error(linear, x, PLAIN) > 0.05, "the case is meant to be hard"
    assert error(linear, x, SMOOTHED) < 0.01 * error(linear, x, PLAIN)


def test_it_does_next_to_nothing_where_nothing_is_wrong() -> None:
    linear, x = case(1.0)
    assert error(linear, x, SMOOTHED) < 3 * error(linear, x, PLAIN)


def test_the_float_weights_that_a_smoothed_layer_stands_for_are_the_original_ones() -> None:
    linear, x = case(50.0)
    layer = Linear(linear).layer(SMOOTHED, observed(x.numpy()), limit=Limit.PAIRS)
    assert torch.allclose(layer.weight, linear.weight, atol=0.02)


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_every_value_stays_inside_the_range(seed: int, factor: float) -> None:
    linear, x = case(factor, seed)
    found = smoothing(observed(x.numpy()), linear.weight.numpy())
    smoothed = x.numpy() * found.multiplier
    assert np.isfinite(found.multiplier).all()
    assert (found.multiplier > 0).all()
    assert smoothed.min() >= found.low * (1 + 1e-4)
    assert smoothed.max() <= found.high * (1 + 1e-4)


def test_a_dead_channel_and_a_dead_weight_do_no_harm() -> None:
    linear, x = case(1.0)
    x[:, 5] = 0.0
    linear.weight[:, 6] = 0.0
    assert error(linear, x, SMOOTHED) < 0.01


def conv_case(groups: int) -> tuple[nn.Conv2d, torch.Tensor]:
    """A convolution whose input has two channels 200 times as large as the others, and weights that make up
    for it.
    """
    generator = torch.Generator().manual_seed(0)
    conv, x = (
        nn.Conv2d(16, 32, 3, padding=1, groups=groups).requires_grad_(False),
        torch.randn(8, 16, 9, 9, generator=generator).relu(),
    )
    conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator) / 12)
    for channel in (3, 13):
        group, place = divmod(channel, 16 // groups)
        reads = slice(group * 32 // groups, (group + 1) * 32 // groups)
        x[:, channel] *= 200
        conv.weight[reads, place] /= 200
    return conv, x


@pytest.mark.parametrize("groups", [1, 2, 16])
def test_convolutions_too(groups: int) -> None:
    conv, x = conv_case(groups)
    observer = Observer()
    observer.update(x.numpy(), channel_axis=1)
    layers = {
        scheme: Conv2d(conv).layer(scheme, observer.stats(), limit=Limit.PAIRS)
        for scheme in (PLAIN, SMOOTHED)
    }
    errors = {
        scheme: float((layer(x) - conv(x)).square().mean() / conv(x).var())
        for scheme, layer in layers.items()
    }
    assert errors[PLAIN] > 0.02, "the case is meant to be hard"
    assert errors[SMOOTHED] < 0.02 * errors[PLAIN]
    assert torch.allclose(layers[SMOOTHED].weight, conv.weight, atol=0.02)


@pytest.mark.parametrize(
    "scheme", [Scheme.int8(repairs=("magic",)), Scheme.int8("dynamic", repairs=(SMOOTH.name,))]
)
def test_a_repair_that_an_op_does_not_have_is_refused(scheme: Scheme) -> None:
    linear, x = case(1.0)
    with pytest.raises(PlanError, match="has no repair"):
        Linear(linear).layer(scheme, observed(x.numpy()), limit=Limit.PAIRS)


@pytest.mark.parametrize("groups", [2, 4, 16])
def test_ops_that_share_an_input_are_smoothed_by_the_weights_that_read_each_channel(groups: int) -> None:
    """Grouped convolutions, written as plain ones with zeros, are smoothed alike."""
    random = np.random.default_rng(0)
    stats = observed((random.standard_normal((50, 16)) * random.uniform(0.1, 30, 16)).astype(np.float32))
    sizes = random.uniform(0.01, 10, (2, 16)).astype(np.float32)
    weights = []
    for size in sizes:  # (outputs, inputs of a group): what reads a channel is as large as it is told
        read = size.reshape(groups, 1, -1).repeat(32 // groups, axis=1)
        weights.append((random.uniform(-1, 1, read.shape) * read).reshape(32, -1).astype(np.float32))
    plain = [np.zeros((32, 16), np.float32) for _ in weights]
    for wide, weight in zip(plain, weights, strict=True):
        for output, row in enumerate(weight):
            first = output // (32 // groups) * len(row)
            wide[output, first : first + len(row)] = row
    shared = shared_smoothing(stats, [(weight, groups) for weight in weights])
    wanted = shared_smoothing(stats, [(weight, 1) for weight in plain])
    assert np.array_equal(shared.multiplier, wanted.multiplier)
    assert (shared.low, shared.high) == (wanted.low, wanted.high)
    alone = shared_smoothing(stats, [(plain[0], 1)])
    assert np.array_equal(alone.multiplier, smoothing(stats, plain[0]).multiplier)
