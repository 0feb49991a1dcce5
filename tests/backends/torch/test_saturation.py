"""PyTorch's int8 kernels never overflow, on any CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends.torch import recurrence
from octune.plan import Scheme
from tests.backends.saturation import CONV, CONV_OF_OTHER_RANKS, LINEAR, Array, ExactSums, Shape
from tests.machines import kernels_add_exactly


class Gate(nn.Module):
    """An LSTM that takes one step, and the sums that its output was made of: all gates but one are half open,
    and the sums are small enough for the two tangents to be undone.
    """

    def __init__(self, weight: Array) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.lstm = nn.LSTM(inputs, outputs, batch_first=True)
        for parameter in self.lstm.parameters():
            parameter.data.zero_()
        largest = 255 * np.abs(weight).sum(axis=1, keepdims=True)
        reach = np.exp2(np.ceil(np.log2(np.maximum(largest, 1e-30))) + 1)  # such divisions are exact
        self.lstm.weight_ih_l0.data[2 * outputs : 3 * outputs] = torch.from_numpy(weight / reach)
        self.register_buffer("reach", torch.from_numpy(reach[:, 0]).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.lstm(x.unsqueeze(1))[0].squeeze(1).double()
        return torch.atanh(2 * torch.atanh(2 * hidden)) * self.get_buffer("reach")


class TestRecurrent(ExactSums):
    schemes = (Scheme.int8("dynamic"),)

    @pytest.fixture(params=LINEAR, ids=str)
    def shape(self, request: pytest.FixtureRequest) -> Shape:
        return request.param

    def build(self, shape: Shape, weight: Array) -> nn.Module:
        return Gate(weight)

    def batch(self, x: Array) -> torch.Tensor:
        return torch.from_numpy(x)

    def errors(self, *args: Any, **kwargs: Any) -> list[float]:
        # the tangents round a few times more
        return [error / 8 for error in super().errors(*args, **kwargs)]

    def exact_anyway(self) -> bool:
        return kernels_add_exactly()


class TestStepByStep(TestRecurrent):
    """Recurrent layers where PyTorch has no kernels for whole ones: on oneDNN's for plain matrices."""

    @pytest.fixture(autouse=True)
    @staticmethod
    def without_whole_layers(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recurrence, "whole_layers", lambda cell: False)

    def exact_anyway(self) -> bool:
        # without VNNI PyTorch multiplies these matrices itself, and slowly; it looks at the CPU, too
        return not torch.cpu._is_vnni_supported()


class TestTorch(ExactSums):
    schemes = (*ExactSums.schemes, Scheme.int8("dynamic"), Scheme.int8("token"))

    @pytest.fixture(params=LINEAR + CONV + CONV_OF_OTHER_RANKS, ids=str)
    def shape(self, request: pytest.FixtureRequest) -> Shape:
        return request.param

    def build(self, shape: Shape, weight: Array) -> nn.Module:
        inputs, outputs = shape.inputs, shape.outputs
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[shape.rank - 1]
        op = (
            convolution(inputs, outputs, shape.kernel, groups=shape.groups, bias=False)
            if shape.kernel
            else nn.Linear(inputs, outputs, bias=False)
        )
        op.weight.data = torch.from_numpy(weight)
        return nn.Sequential(op)

    def batch(self, x: Array) -> torch.Tensor:
        return torch.from_numpy(x)
