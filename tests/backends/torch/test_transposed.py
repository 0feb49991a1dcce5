"""Transposed convolutions: as ordinary ones with interleaved outputs they compute the same, in all forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

import octune
from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import compile_model, export
from octune.backends.torch.kinds.transposed import Phases
from octune.machine import probe_machine
from octune.plan import Plan, Scheme
from tests.backends.contract import BackendContract, Subject, calibrated, int8_plan
from tests.backends.saturation import Array, ExactSums, Shape
from tests.backends.torch.models import trained_norms

needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SCHEMES = [scheme for scheme in (Scheme.int8("static"), Scheme.bf16()) if probe_machine().runs(scheme.dtype)]
CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)


class Decoder(nn.Module):
    """A U-Net of two scales: one way up with a BatchNorm behind it, one with a weight of its own and the size
    of what it is joined with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.bottom = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.join = nn.Conv2d(48, 16, 3, padding=1)
        self.kernel = nn.Parameter(0.2 * torch.randn(16, 16, 2, 2))
        self.last = nn.ConvTranspose2d(16, 16, 3, padding=1)
        self.head = nn.Conv2d(32, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = F.relu(self.first(x))
        second = F.relu(self.second(F.max_pool2d(first, 2)))
        y = F.relu(self.bottom(F.max_pool2d(second, 2)))
        y = F.relu(self.norm(self.up(y, output_size=second.shape[2:])))
        y = F.relu(self.join(torch.cat([y, second], 1)))
        y = F.relu(self.last(F.conv_transpose2d(y, self.kernel, stride=2)))
        return self.head(torch.cat([y, first], 1))


class Vocoder(nn.Module):
    """Samples from a few numbers for each moment."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(8, 32, 7, padding=3)
        self.ups = nn.Sequential(
            nn.ConvTranspose1d(32, 16, 8, stride=4, padding=2),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(16, 8, 4, 2, 1),
        )
        self.head = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.head(self.ups(F.leaky_relu(self.stem(x), 0.1))))


def batches(*shape: int) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(4, *shape), torch.zeros(4, dtype=torch.long)) for _ in range(2)]


def decoder() -> Subject:
    torch.manual_seed(0)
    return Subject(trained_norms(Decoder(), torch.randn(4, 3, 16, 20)), batches(3, 16, 20), Decoder)


def vocoder() -> Subject:
    torch.manual_seed(0)
    return Subject(Vocoder().eval(), batches(8, 24), Vocoder)


class TestDecoder(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return decoder()


class TestVocoder(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return vocoder()


def prepared(subject: Subject) -> tuple[TorchBackend, nn.Module, Inputs]:
    backend = TorchBackend(subject.model, Settings())
    ranges = calibrated(backend, subject.batches)
    return backend, backend.apply(int8_plan(backend, ranges), ranges), backend.split(subject.batches[0])[0]


def test_modules_and_functions_are_found_and_norms_are_folded() -> None:
    backend, int8, _ = prepared(decoder())
    kinds = {op.name: op.kind for op in backend.ops()}
    assert [name for name, kind in kinds.items() if kind == "conv_transpose2d"] == ["kernel", "up", "last"]
    assert all(op.can("int8") for op in backend.ops())
    assert any("1 BatchNorm" in note for note in backend.notes)
    assert isinstance(int8.norm, nn.Identity)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    rank = draw(st.integers(1, 3))
    numbers = [
        draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))
        for low, high in ((1, 5), (1, 4), (0, 4), (0, 3), (1, 3))
    ]
    kernel, stride, padding, output_padding, dilation = numbers
    groups = draw(st.sampled_from((1, 1, 2)))
    for n, k, s, p, o, d in zip(range(3, 3 + rank), *numbers, strict=True):
        assume(p <= d * (k - 1) and o < max(s, d) and (n - 1) * s - 2 * p + d * (k - 1) >= 0)
    return TRANSPOSED[rank - 1](
        4, 6, kernel, stride, padding, output_padding, groups, draw(st.booleans()), dilation
    )


@settings(max_examples=50)
@given(module=modules())
def test_phases_are_the_convolution(module: Any) -> None:
    """In float, to the last bits."""
    phases, rank = Phases.of(module), len(module.kernel_size)
    weight, where = module.weight.detach().double(), phases.geometry()
    torch.testing.assert_close(phases.join(phases.split(weight)), weight, rtol=0, atol=0)
    x = torch.randn(2, 4, *range(3, 3 + rank), dtype=torch.float64)
    wanted = module.double()(x)
    y = CONVOLVE[rank - 1](
        F.pad(x, where.pads), phases.split(weight), dilation=where.dilation, groups=where.groups
    )
    y = phases.interleave(y)
    if module.bias is not None:
        y = y + module.bias.reshape(-1, *(1,) * rank)
    for dim, (size, p, s) in enumerate(zip(wanted.shape[2:], phases.padding, phases.stride, strict=True)):
        y = y.narrow(2 + dim, p % s, size)
    torch.testing.assert_close(y, wanted)


@settings(max_examples=20)
@given(module=modules(), scheme=st.sampled_from(SCHEMES))
@example(module=nn.ConvTranspose2d(4, 6, 2, 2), scheme=Scheme.int8("static"))
@example(module=nn.ConvTranspose1d(4, 6, 16, 8, 4), scheme=Scheme.int8("static"))
@example(module=nn.ConvTranspose3d(4, 6, 3, 2, 1, 1), scheme=Scheme.int8("static"))
def test_layers_give_what_fp32_gives(module: Any, scheme: Scheme) -> None:
    rank = len(module.kernel_size)
    backend = TorchBackend(nn.Sequential(module).eval(), Settings())
    torch.manual_seed(0)
    x = torch.randn(2, 4, *range(4, 4 + rank))
    ranges = calibrated(backend, [x])
    layer = backend.apply(Plan({"0": scheme}), ranges)[0]  # type: ignore[index]
    with torch.inference_mode():
        least = module(x).shape[2:]
        most = [n + s - 1 - o for n, s, o in zip(least, module.stride, module.output_padding, strict=True)]
        fewest = [n - o for n, o in zip(least, module.output_padding, strict=True)]
        for size in (None, most, fewest):
            close(layer(x, size), module(x, size))
        close(layer(x[0]), module(x[0]))
        close(layer(x[:1]), module(x[:1]))
        np.testing.assert_allclose(
            layer.weight.float(), module.weight, atol=0.02 * float(module.weight.abs().max())
        )


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.shape == wanted.shape
    if wanted.numel():
        assert (got - wanted).abs().max() <= 0.05 * wanted.abs().max() + 1e-3


def test_a_size_that_it_cannot_make_is_refused() -> None:
    backend = TorchBackend(nn.Sequential(nn.ConvTranspose2d(4, 4, 2, 2)).eval(), Settings())
    ranges = calibrated(backend, [torch.randn(2, 4, 5, 5)])
    layer: Any = backend.apply(int8_plan(backend, ranges), ranges)[0]  # type: ignore[index]
    with pytest.raises(ValueError, match=r"\[10, 10\] to \[11, 11\]"):
        layer(torch.randn(1, 4, 5, 5), output_size=[10, 12])


class Crops(nn.ConvTranspose1d):
    def forward(self, x: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        return super().forward(x)[..., :-1]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.ConvTranspose1d(4, 4, 1, 2, padding=1), "padding is wider than its kernel"),
        (Crops(4, 4, 2), "Crops computes something of its own"),
    ],
)
def test_what_stays_float_says_why(module: nn.Module, reason: str) -> None:
    (op,) = TorchBackend(nn.Sequential(module), Settings()).ops()
    assert op.schemes == (Scheme.fp32(),)
    assert reason in op.note


@pytest.mark.parametrize("subject", [decoder, vocoder])
def test_a_saved_model_loads_with_and_without_its_class(subject: Any, tmp_path: Path) -> None:
    made = subject()
    backend, int8, call = prepared(made)
    metadata = backend.writer()(int8, tmp_path)
    (wanted,) = backend.run(int8, call).values()
    for factory in (None, made.factory):
        loaded = TorchBackend.load(tmp_path, metadata, factory)
        np.testing.assert_array_equal(next(iter(backend.run(loaded, call).values())), wanted)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "other"), [(decoder, (1, 3, 16, 20)), (vocoder, (3, 8, 31))], ids=["decoder", "vocoder"]
)
def test_compiled_it_agrees_with_eager(subject: Any, other: tuple[int, ...]) -> None:
    backend, int8, call = prepared(subject())
    compiled = compile_model(int8, call)
    for inputs in (call, Inputs((torch.randn(other),))):
        assert compiled.signature.matches(inputs.args, {})
        (wanted,), (got,) = backend.run(int8, inputs).values(), backend.run(compiled, inputs).values()
        np.testing.assert_allclose(got, wanted, atol=0.05 * np.abs(wanted).max())


def test_programs_saved_by_torch_export_are_quantized_too(tmp_path: Path) -> None:
    made = decoder()
    program, _ = export(made.model, prepared(made)[2])
    torch.export.save(program, tmp_path / "model.pt2")
    backend = TorchBackend(TorchBackend.open(str(tmp_path / "model.pt2")), Settings())
    calibrated(backend, made.batches)
    found = [op for op in backend.ops() if op.kind == "conv_transpose2d"]
    assert len(found) == 3
    assert all(op.can("int8") for op in found)


class EveryPhaseAlike(nn.Module):
    """A transposed convolution of stride 2, all of whose phases are one convolution."""

    def __init__(self, shape: Shape, weight: Array) -> None:
        super().__init__()
        self.rank = shape.rank
        kernel = torch.from_numpy(weight).flip(*range(2, 2 + shape.rank))
        for dim in range(shape.rank):
            kernel = kernel.repeat_interleave(2, 2 + dim)
        self.op = TRANSPOSED[shape.rank - 1](
            shape.inputs,
            shape.outputs,
            2 * shape.kernel,
            2,
            2 * (shape.kernel - 1),
            0,
            shape.groups,
            bias=False,
        )
        turned = kernel.unflatten(0, (shape.groups, -1)).transpose(1, 2).flatten(0, 1)
        self.op.weight.data = turned.contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x)[(slice(None), slice(None), *[slice(1, None, 2)] * self.rank)]


class TestSums(ExactSums):
    """They are exact on every CPU."""

    @pytest.fixture(
        params=[
            Shape(32, 16, 2),
            Shape(33, 8, 2),
            Shape(16, 16, 2, 4),
            Shape(31, 8, 3, rank=1),
            Shape(8, 8, 2, rank=3),
        ],
        ids=str,
    )
    def shape(self, request: pytest.FixtureRequest) -> Shape:
        return request.param

    def build(self, shape: Shape, weight: Array) -> nn.Module:
        if not shape.kernel:
            linear = nn.Linear(shape.inputs, shape.outputs, bias=False)
            linear.weight.data = torch.from_numpy(weight)
            return nn.Sequential(linear)
        return EveryPhaseAlike(shape, weight)

    def batch(self, x: Array) -> torch.Tensor:
        return torch.from_numpy(x)


@pytest.mark.slow
def test_a_u_net_is_tuned_and_loads_without_its_class(tmp_path: Path) -> None:
    made = decoder()
    images = [x for x, _ in made.batches]
    result = octune.tune(
        made.model,
        calibration=images[:1],
        evaluation=images[1:],
        config={"performance": {"compile": "never"}},
        progress=False,
    )
    assert result.met, str(result)
    ways_up = {op.name for op in result.ops if op.kind == "conv_transpose2d" and op.can("int8")}
    assert ways_up == {"kernel", "up", "last"}
    model = octune.quantize(
        made.model, calibration=images, plan=Plan({op.name: Scheme.int8() for op in result.ops})
    )
    octune.save(model, tmp_path / "saved")
    with torch.inference_mode():
        wanted, got = model(images[0]), octune.load(tmp_path / "saved")(images[0])
        assert torch.equal(got, wanted)
        float_ = made.model(images[0])
        assert 0 < (wanted - float_).norm() < 0.1 * float_.norm()
