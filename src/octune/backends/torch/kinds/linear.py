"""Linear layers, and the transposed ones of GPT-2."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.kinds.base import Kind
from octune.backends.torch.layers import Bf16Layer, Int8Layer, onednn
from octune.backends.torch.quantize import decomposed, dynamic_grid, quantize, to_uint8

__all__ = ["Linear", "TransposedLinear"]


class Int8Linear(Int8Layer):
    """Static int8: the input's range is known. ``settings``: scale, zero_point.

    With ``smooth``, every channel of the input is multiplied by a number of its own first (see
    octune.repair.smooth).
    """

    kind = "int8_linear"

    @property
    def in_features(self) -> int:
        return self.weight_int8.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight_int8.shape[0]

    def packed(self) -> torch.Tensor:
        packed: torch.Tensor = onednn.qlinear_prepack.default(self.weight_int8, None)
        return packed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        compiling = torch.compiler.is_compiling()
        kernel = self.ready() if compiling or self._kernel is None else self._kernel
        dtype = input.dtype
        x = input if dtype is torch.float32 else input.float()
        if kernel.smooth is not None:
            x = x * kernel.smooth
        q = to_uint8(x, self.scale, self.zero_point) if compiling else quantize(x, *kernel.grid)
        y: torch.Tensor = onednn.qlinear_pointwise.default(
            q, self.scale, self.zero_point, *kernel[:4], 1.0, 0, torch.float32, "none", [], ""
        )
        return y if dtype is torch.float32 else y.to(dtype)


class Int8DynamicLinear(Int8Linear):
    """Dynamic int8: the range is taken from every input. No ``settings``."""

    kind = "int8_dynamic_linear"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        dtype = input.dtype
        x = input if dtype is torch.float32 else input.float()
        if not torch.compiler.is_compiling() and x.numel() == 0:
            return input.new_empty((*input.shape[:-1], self.out_features))
        kernel = self.ready() if torch.compiler.is_compiling() or self._kernel is None else self._kernel
        low, high = torch.aminmax(x)
        y: torch.Tensor
        if torch.compiler.is_compiling():
            low, high = low.clamp(max=0.0), high.clamp(min=0.0)
            scale = ((high - low) / 255.0).clamp(min=1e-12)
            zero_point = torch.round(-low / scale).to(torch.int32)
            q = decomposed.quantize_per_tensor.tensor(x, scale, zero_point, 0, 255, torch.uint8)
            y = onednn.qlinear_pointwise.tensor(
                q, scale, zero_point, *kernel[:4], 1.0, 0, torch.float32, "none", [], ""
            )
        else:
            least, most = low.item(), high.item()
            if not np.isfinite(np.float32(most) - np.float32(least)):
                return F.linear(x, self.weight, self.bias).to(dtype)  # NaN in, NaN out, as in float
            scale_, zero_point_ = dynamic_grid(least, most)
            q = to_uint8(x, scale_, zero_point_)
            y = onednn.qlinear_pointwise.default(
                q, scale_, zero_point_, *kernel[:4], 1.0, 0, torch.float32, "none", [], ""
            )
        return y if dtype is torch.float32 else y.to(dtype)


class Int8TokenLinear(Int8Linear):
    """Dynamic int8 with a range for every row of the input, a token: one with large numbers does not take the
    levels of the others. No ``settings``.

    The kernel knows one scale and zero point. So the scale is left to what follows, and every row has the
    same zero point, the middle one.
    """

    kind = "int8_token_linear"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        kernel = self.ready() if torch.compiler.is_compiling() or self._kernel is None else self._kernel
        if not torch.compiler.is_compiling() and input.numel() == 0:
            return input.new_empty((*input.shape[:-1], self.out_features))
        x = input if input.dtype is torch.float32 else input.float()
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        scale = torch.maximum(high / 127.0, low / -128.0).clamp(min=1e-12)
        q = ((x / scale).round() + 128.0).clamp(0.0, 255.0).to(torch.uint8)
        sums = onednn.qlinear_pointwise.default(
            q, 1.0, 128, kernel.packed, kernel.weight_scale, kernel.zero_points, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        y: torch.Tensor = sums * scale
        if kernel.bias is not None:
            y = y + kernel.bias
        return y if input.dtype is torch.float32 else y.to(input.dtype)


class Bf16Linear(Bf16Layer):
    """Float in, float out, bfloat16 in between."""

    kind = "bf16_linear"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input.bfloat16(), self.weight, self.bias).to(input.dtype)


class Linear(Kind):
    """``nn.Linear``."""

    name = "linear"
    plain = nn.Linear
    layers: ClassVar = {
        "static": Int8Linear,
        "dynamic": Int8DynamicLinear,
        "token": Int8TokenLinear,
        "bf16": Bf16Linear,
    }


class TransposedLinear(Linear):
    """``Conv1D`` of transformers, a Linear whose weight is (inputs, outputs): GPT-2 has it."""

    name = "transposed_linear"
    obstacle = ""  # recognised by its exact class

    @classmethod
    def recognises(cls, module: nn.Module) -> bool:
        found = type(module)
        return found.__name__ == "Conv1D" and found.__module__ == "transformers.pytorch_utils"

    @property
    def weight(self) -> torch.Tensor:
        return super().weight.t()
