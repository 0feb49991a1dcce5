"""Convolutions of one and of three dimensions: the contract, folded, padded, compiled, saved as programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import compile_model, export
from octune.backends.torch.lowering import lower
from octune.machine import probe_machine
from octune.plan import Plan
from tests.backends.contract import BackendContract, Subject, calibrated, int8_plan
from tests.backends.torch.models import trained_norms

needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")


class PadsBefore(nn.Conv1d):
    """A causal convolution: it looks back only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class Residual(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, norm: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.norm, self.other = first, second, norm, other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.other(self.second(F.gelu(self.norm(self.first(x))))) + x)


class Signals(nn.Module):
    """Raw samples of one channel; strided, causal, depthwise and grouped convolutions; any length."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(1, 32, 10, stride=4, bias=False), nn.BatchNorm1d(32), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(
            Residual(
                PadsBefore(32, 32, 3, dilation=2),
                nn.Conv1d(32, 32, 3, padding="same"),
                nn.BatchNorm1d(32),
                nn.BatchNorm1d(32),
            ),
            nn.Conv1d(32, 32, 9, padding=4, groups=32),
            nn.ReLU6(),
            nn.Conv1d(32, 32, 1, groups=4),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=2))


class Volumes(nn.Module):
    """A residual block, whose sum and activation the compiler would like to move into the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 16, 3, stride=(1, 2, 2), padding=1, bias=False), nn.BatchNorm3d(16), nn.ReLU()
        )
        self.block = Residual(
            nn.Conv3d(16, 16, (3, 1, 1), padding=(1, 0, 0)),
            nn.Conv3d(16, 16, 3, padding=1, groups=16),
            nn.BatchNorm3d(16),
            nn.BatchNorm3d(16),
        )
        self.last = nn.Sequential(nn.Conv3d(16, 32, 1), nn.ReLU6())
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.block(self.stem(x))).mean(dim=(2, 3, 4)))


def batches(*shape: int) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(8, *shape), torch.randint(0, 10, (8,))) for _ in range(2)]


def signals() -> Subject:
    torch.manual_seed(0)
    return Subject(trained_norms(Signals(), torch.randn(16, 1, 200)), batches(1, 200), Signals)


def volumes() -> Subject:
    torch.manual_seed(0)
    return Subject(trained_norms(Volumes(), torch.randn(16, 3, 6, 8, 8)), batches(3, 6, 8, 8), Volumes)


class TestSignals(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return signals()


class TestVolumes(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return volumes()


def prepared(subject: Subject) -> tuple[TorchBackend, nn.Module, Inputs]:
    backend = TorchBackend(subject.model, Settings())
    ranges = calibrated(backend, subject.batches)
    return backend, backend.apply(int8_plan(backend, ranges), ranges), backend.split(subject.batches[0])[0]


@pytest.mark.parametrize(
    ("subject", "kind", "ops", "norms"), [(signals, "conv1d", 5, 3), (volumes, "conv3d", 4, 3)]
)
def test_all_are_found_and_norms_are_folded(
    subject: Callable[[], Subject], kind: str, ops: int, norms: int
) -> None:
    backend, _, _ = prepared(subject())
    assert [op.kind for op in backend.ops()] == [kind] * ops + ["linear"]
    assert all(op.can("int8") for op in backend.ops())
    assert any(f"{norms} BatchNorms" in note for note in backend.notes)


def test_an_activation_follows_its_convolution_in_the_compiled_form() -> None:
    """No view in between, which would keep the compiler from moving it into the kernel."""
    _, int8, call = prepared(signals())
    program, _ = export(int8, call)
    lower(program)
    after = {
        str(user.target)
        for node in program.graph.nodes
        if node.target is torch.ops.onednn.qconv_pointwise.default
        for user in node.users
    }
    assert {"aten.relu_.default", "aten.gelu.default", "aten.add.Tensor", "aten.hardtanh.default"} <= after


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "others"),
    [(signals, [(3, 1, 200), (1, 1, 333)]), (volumes, [(3, 3, 6, 8, 8)])],
    ids=["signals", "volumes"],
)
def test_compiled_it_agrees_with_eager(subject: Callable[[], Subject], others: list[Any]) -> None:
    backend, int8, call = prepared(subject())
    compiled = compile_model(int8, call)
    for inputs in (call, *(Inputs((torch.randn(shape),)) for shape in others)):
        assert compiled.signature.matches(inputs.args, {})
        (wanted,), (got,) = backend.run(int8, inputs).values(), backend.run(compiled, inputs).values()
        np.testing.assert_allclose(got, wanted, atol=0.05 * np.abs(wanted).max())


@pytest.mark.parametrize("subject", [signals, volumes])
def test_a_saved_model_loads_without_its_class_and_packs_its_weights_once(
    subject: Callable[[], Subject], tmp_path: Path
) -> None:
    backend, int8, call = prepared(subject())
    metadata = backend.writer()(int8, tmp_path)
    for limit_again in (False, True):
        loaded = TorchBackend.load(tmp_path, metadata, limit_again=limit_again)
        (wanted,), (got,) = backend.run(int8, call).values(), backend.run(loaded, call).values()
        np.testing.assert_array_equal(got, wanted)
        code = loaded.program.code  # type: ignore[union-attr]
        assert "qconv" in code
        assert "prepack" not in code


@pytest.mark.parametrize("subject", [signals, volumes])
def test_programs_saved_by_torch_export_are_quantized_too(
    subject: Callable[[], Subject], tmp_path: Path
) -> None:
    made = subject()
    _, _, call = prepared(made)
    program, _ = export(made.model, call)
    torch.export.save(program, tmp_path / "model.pt2")
    backend = TorchBackend(TorchBackend.open(str(tmp_path / "model.pt2")), Settings())
    calibrated(backend, made.batches)
    assert [op.kind for op in backend.ops()].count("linear") == 1
    assert any("BatchNorms" in note for note in backend.notes)


def test_a_signal_without_a_batch_has_its_channels_in_front() -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1)).eval()
    backend = TorchBackend(model, Settings())
    call = Inputs((torch.randn(4, 50),))
    ranges = calibrated(backend, [call.args])
    assert ranges["0"].channel_max.shape == (4,)
    smoothed = next(s for s in backend.ops()[0].schemes if s.repairs)
    (wanted,) = backend.run(model, call).values()
    (got,) = backend.run(backend.apply(Plan({"0": smoothed}), ranges), call).values()
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()
