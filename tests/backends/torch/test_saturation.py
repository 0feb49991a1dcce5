"""PyTorch's int8 kernels never overflow, on any CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from octune.plan import Scheme
from tests.backends.saturation import CONV, CONV_OF_OTHER_RANKS, LINEAR, Array, ExactSums, Shape


class TestTorch(ExactSums):
    schemes = (*ExactSums.schemes, Scheme.int8("dynamic"))

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
