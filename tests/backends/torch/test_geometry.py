"""Convolutions whose class pads by itself: seen for what they are, or left alone with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from octune.backends import Settings
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import compile_model
from octune.backends.torch.kinds.geometry import geometry_of, same_padding
from octune.backends.torch.layers import Layer
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated
from tests.machines import runnable


class PadsAsTensorFlow(nn.Conv2d):
    """Zeros by the size of the image, as in ports of models from TensorFlow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (height, width), (s, _), (k, _), (d, _) = x.shape[-2:], self.stride, self.kernel_size, self.dilation
        down, across = (max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n in (height, width))
        x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class PadsOneSide(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 2)))


class Standardizes(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Scales(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Mirrors(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1), mode="reflect"))


class Raises(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("only with company")


@settings(max_examples=25)
@given(
    kernel=st.integers(1, 5), stride=st.integers(1, 3), dilation=st.integers(1, 2), padding=st.integers(0, 3)
)
def test_what_is_seen_is_what_the_class_does(kernel: int, stride: int, dilation: int, padding: int) -> None:
    conv = PadsAsTensorFlow(2, 3, kernel, stride, dilation=dilation)
    plain = nn.Conv2d(2, 3, kernel, stride, padding, dilation)
    x = torch.randn(1, 2, 13, 16)
    for module in (conv, plain):
        found = geometry_of(module)
        assert found is not None
        pads = (
            same_padding((13, 16), (kernel, kernel), found.stride, found.dilation)
            if found.pads == "same"
            else found.pads
        )
        with torch.no_grad():
            again = F.conv2d(
                F.pad(x, pads), module.weight, module.bias, found.stride, 0, found.dilation, found.groups
            )
            assert torch.allclose(again, module(x), atol=1e-5)


@pytest.mark.parametrize(
    ("module", "pads"),
    [
        (PadsAsTensorFlow(4, 4, 3), (1, 1, 1, 1)),  # a stride of one: the size does not matter
        (PadsAsTensorFlow(4, 4, 3, stride=2), "same"),
        (PadsOneSide(4, 4, 3), (0, 1, 0, 2)),
        (PadsOneSide(4, 4, 3, padding=1), (1, 2, 1, 3)),
        (nn.Conv2d(4, 4, 4, padding="same"), (1, 2, 1, 2)),
        (nn.Conv2d(4, 4, (3, 1), padding="valid"), (0, 0, 0, 0)),
        (nn.Conv2d(4, 4, (3, 5), padding=(1, 2)), (2, 2, 1, 1)),
    ],
)
def test_zeros_around_the_image(module: nn.Conv2d, pads: Any) -> None:
    found = geometry_of(module)
    assert found is not None
    assert found.pads == pads


class PadsAllSides(nn.Conv3d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (0, 1, 2, 0, 1, 3)))


@pytest.mark.parametrize(
    ("module", "pads", "settings"),
    [
        (nn.Conv1d(4, 4, 3, padding=2), (2, 2), {"padding": [2]}),
        (nn.Conv1d(4, 4, 4, padding="same"), (1, 2), {"padding": [0], "pads": [1, 2]}),
        (nn.Conv3d(4, 4, 3, padding=(1, 2, 3)), (3, 3, 2, 2, 1, 1), {"padding": [1, 2, 3]}),
        (
            PadsAllSides(4, 4, 3, padding=1),
            (1, 2, 3, 1, 2, 4),
            {"padding": [0, 0, 0], "pads": [1, 2, 3, 1, 2, 4]},
        ),
    ],
)
def test_images_of_one_and_three_dimensions(module: Any, pads: Any, settings: dict[str, Any]) -> None:
    found = geometry_of(module)
    assert found is not None
    assert found.pads == pads
    rank = len(pads) // 2
    assert found.settings() == {"stride": [1] * rank, "dilation": [1] * rank, "groups": 1, **settings}


@pytest.mark.parametrize(
    "module", [Standardizes(4, 4, 3), Scales(4, 4, 3), Mirrors(4, 4, 3), Raises(4, 4, 3)]
)
def test_what_computes_something_else_is_left_alone_and_listed(module: nn.Conv2d) -> None:
    (op,) = TorchBackend(nn.Sequential(module), Settings()).ops()
    assert not op.can("int8")
    assert f"{type(module).__name__} computes something of its own" in op.note


class Doubles(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Shifts(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


@pytest.mark.parametrize("module", [Doubles(4, 4), Shifts(4, 4)])
def test_linears_and_embeddings_with_a_forward_of_their_own_are_listed_too(module: nn.Module) -> None:
    (op,) = TorchBackend(nn.Sequential(module), Settings()).ops()
    assert not op.can("int8")
    assert f"{type(module).__name__} computes something of its own" in op.note


def test_reflection_is_left_alone() -> None:
    (op,) = TorchBackend(
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")), Settings()
    ).ops()
    assert "reflect" in op.note


def net() -> nn.Module:
    torch.manual_seed(0)
    first, second = PadsAsTensorFlow(3, 16, 3, stride=2, bias=False), PadsOneSide(16, 16, 3, groups=16)
    norm = nn.BatchNorm2d(16)
    norm.running_mean, norm.running_var = torch.randn(16), torch.rand(16) + 0.5  # type: ignore[assignment]
    last = nn.Conv2d(16, 8, 2, padding="same")
    return nn.Sequential(
        first, norm, nn.ReLU(), second, nn.ReLU(), last, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()


@pytest.mark.parametrize("scheme", runnable([Scheme.int8("static"), Scheme.bf16()]))
@pytest.mark.parametrize("size", [16, 21], ids=["as calibrated", "another size"])
def test_int8_and_bf16_give_what_fp32_gives(scheme: Scheme, size: int) -> None:
    backend = TorchBackend(net(), Settings())
    ranges = calibrated(backend, [torch.randn(4, 3, 16, 16) for _ in range(3)])
    assert any("1 BatchNorm" in note for note in backend.notes)
    made = backend.apply(Plan(dict.fromkeys(("0", "3", "5"), scheme)), ranges)
    assert sum(isinstance(module, Layer) for module in made.modules()) == 3
    call = backend.split(torch.randn(8, 3, size, size))[0]
    (wanted,), (got,) = backend.run(backend.fp32_model(), call).values(), backend.run(made, call).values()
    assert abs(got - wanted).max() < 0.05 * abs(wanted).max()


@pytest.mark.slow
def test_compiled() -> None:
    backend = TorchBackend(net(), Settings())
    batch = torch.randn(4, 3, 16, 16)
    ranges = calibrated(backend, [batch])
    made = backend.apply(Plan(dict.fromkeys(("0", "3", "5"), Scheme.int8("static"))), ranges)
    call = backend.split(batch)[0]
    (wanted,), (got,) = (
        backend.run(made, call).values(),
        backend.run(compile_model(made, call), call).values(),
    )
    assert abs(got - wanted).max() < 0.03 * abs(wanted).max()
