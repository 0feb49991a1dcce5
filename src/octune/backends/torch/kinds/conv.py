"""Convolutions. What depends on the number of dimensions is in the last few classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.kinds.base import Kind
from octune.backends.torch.kinds.geometry import (
    SAME,
    Convolution,
    Geometry,
    Pads,
    geometry_of,
    same_padding,
)
from octune.backends.torch.layers import Bf16Layer, Int8Layer, onednn
from octune.backends.torch.quantize import quantize, to_uint8
from octune.calibration import TensorStats
from octune.int8 import Grid

__all__ = ["Conv", "Conv1d", "Conv2d", "Conv3d", "Int8Conv2d"]


class Int8Conv(Int8Layer):
    """Static int8 convolution. ``settings``: scale, zero_point, stride, padding, dilation, groups,
    input_shape, output, pads.

    With ``smooth``, every channel of the input is multiplied by a number of its own first, as in a linear
    layer.

    ``input_shape`` is that of one calibrated sample. The kernel lays out its weights for a size of image;
    packed for an unknown one, they are packed again at every call, which at batch 1 takes several times
    longer than the convolution itself. ``output`` is the scale and zero point that fit what the convolution
    returns, for the compiled form (see ``lowering``). ``pads`` (see ``geometry``) is there only where sides
    differ, which the kernel does not support.
    """

    rank: ClassVar[int]
    layout: ClassVar[torch.memory_format]
    kernel: ClassVar[Any] = onednn.qconv_pointwise.default
    # Dimensions of size one that the kernel sees in front of those of the image.
    added: ClassVar[int] = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.stride, self.padding, self.dilation = (
            [none] * self.added + list(settings[name])
            for name, none in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        self.groups = int(settings["groups"])

    def packed(self) -> torch.Tensor:
        weight, shape = self.weight_int8, self.settings.get("input_shape")
        if shape is not None:
            pads = _pads(self.settings, weight, shape)
            around = [before + after for before, after in zip(pads[::2], pads[1::2], strict=True)]
            sizes = (size + zeros for size, zeros in zip(shape[2:], reversed(around), strict=True))
            shape = [*shape[:2], *[1] * self.added, *sizes]
        weight = weight.reshape(*weight.shape[:2], *[1] * self.added, *weight.shape[2:])
        if torch.compiler.is_compiling() and self._single:
            weight, shape = self._with_second_channel(weight), shape and [shape[0], 2, *shape[2:]]
        packed: torch.Tensor = onednn.qconv_prepack.default(
            weight, self.weight_scale, self.scale, self.zero_point,
            self.stride, self.padding, self.dilation, self.groups, shape,
        )  # fmt: skip
        return packed

    @property
    def _single(self) -> bool:
        """One input channel. Its stride means nothing, so compiled code may take either layout for the other,
        and compute wrong numbers: it is compiled with a second channel of zeros.
        """
        return self.weight_int8.shape[1] * self.groups == 1

    def _with_second_channel(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0) * (self.rank + self.added) + (0, 1))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        compiling = torch.compiler.is_compiling()
        kernel = self.ready() if compiling or self._kernel is None else self._kernel
        squeezed = input.ndim == self.rank + 1
        # A cast that changes nothing is still a node of an exported graph, and keeps the compiler from fusing
        # across it.
        x = input if input.dtype is torch.float32 else input.float()
        x = x.unsqueeze(0) if squeezed else x
        if kernel.smooth is not None:
            x = x * kernel.smooth.reshape(-1, *(1,) * self.rank)
        for _ in range(self.added):
            x = x.unsqueeze(2)
        if compiling and self._single:
            x = self._with_second_channel(x)
        x = x.contiguous(memory_format=self.layout)
        q = to_uint8(x, self.scale, self.zero_point) if compiling else quantize(x, *kernel.grid)
        if "pads" in self.settings:  # after the quantize: a quarter of the bytes
            q = F.pad(q, _pads(self.settings, self.weight_int8, x.shape), value=self.zero_point)
        y: torch.Tensor = self.kernel(
            q, self.scale, self.zero_point, *kernel[:4],
            self.stride, self.padding, self.dilation, self.groups, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        for _ in range(self.added):
            y = y.squeeze(2)
        return y.squeeze(0) if squeezed else y


class Bf16Conv(Bf16Layer):
    """Float in, float out, bfloat16 in between. ``settings``: stride, padding, dilation, groups, pads."""

    convolve: ClassVar[Callable[..., torch.Tensor]]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        where = {name: self.settings[name] for name in ("stride", "padding", "dilation", "groups")}
        x = input.bfloat16()
        if "pads" in self.settings:
            x = F.pad(x, _pads(self.settings, self.weight, x.shape))
        return self.convolve(x, self.weight, self.bias, **where).to(input.dtype)


def _pads(settings: Mapping[str, Any], weight: torch.Tensor, shape: Sequence[int]) -> Pads:
    """What a convolution adds around an image before the kernel sees it."""
    kernel = tuple(weight.shape[2:])
    pads = settings.get("pads", (0, 0) * len(kernel))
    if pads != SAME:
        return tuple(pads)
    sizes = tuple(shape[-len(kernel) :])
    return same_padding(sizes, kernel, tuple(settings["stride"]), tuple(settings["dilation"]))


class Conv(Kind):
    """Shared by convolutions of any number of dimensions. They have no dynamic scheme: finding the range
    takes a pass over the whole image before the convolution can begin, which is never worth it.
    """

    module: Convolution
    wants_output = True

    @cached_property
    def geometry(self) -> Geometry | None:
        """How it is placed on its image; None if it computes something else."""
        return geometry_of(self.module)

    @property
    def obstacle(self) -> str:
        if self.geometry is not None:
            return ""
        return super().obstacle or f"its padding ({self.module.padding_mode}) has no int8 kernel"

    @property
    def groups(self) -> int:
        return 1 if self.geometry is None else self.geometry.groups

    def settings(self) -> dict[str, Any]:
        return {} if self.geometry is None else self.geometry.settings()

    def static_settings(self, stats: TensorStats, output: TensorStats | None) -> dict[str, Any]:
        made: dict[str, Any] = {"input_shape": [1, *stats.shape[1 - self.weight.ndim :]], "output": None}
        if output is not None and output.finite:
            grid = Grid.affine(output.low, output.high)
            made["output"] = [grid.scale, grid.zero_point]
        return made


class Int8Conv1d(Int8Conv):
    """Runs as an image of height one: the compiler knows the kernel of two dimensions best, and channels stay
    last from one layer to the next.
    """

    kind = "int8_conv1d"
    rank = 1
    added = 1
    layout = torch.channels_last


class Int8Conv2d(Int8Conv):
    kind = "int8_conv2d"
    rank = 2
    layout = torch.channels_last


class Int8Conv3d(Int8Conv):
    kind = "int8_conv3d"
    rank = 3
    layout = torch.channels_last_3d
    kernel = onednn.qconv3d_pointwise.default


class Bf16Conv1d(Bf16Conv):
    kind = "bf16_conv1d"
    convolve = staticmethod(F.conv1d)


class Bf16Conv2d(Bf16Conv):
    kind = "bf16_conv2d"
    convolve = staticmethod(F.conv2d)


class Bf16Conv3d(Bf16Conv):
    kind = "bf16_conv3d"
    convolve = staticmethod(F.conv3d)


class Conv1d(Conv):
    """``nn.Conv1d``."""

    name = "conv1d"
    plain = nn.Conv1d
    channel_axis = -2  # an image may come without a batch
    layers: ClassVar = {"static": Int8Conv1d, "bf16": Bf16Conv1d}
    batchnorm = nn.BatchNorm1d


class Conv2d(Conv):
    """``nn.Conv2d``."""

    name = "conv2d"
    plain = nn.Conv2d
    channel_axis = -3  # an image may come without a batch
    layers: ClassVar = {"static": Int8Conv2d, "bf16": Bf16Conv2d}
    batchnorm = nn.BatchNorm2d


class Conv3d(Conv):
    """``nn.Conv3d``."""

    name = "conv3d"
    plain = nn.Conv3d
    channel_axis = -4  # an image may come without a batch
    layers: ClassVar = {"static": Int8Conv3d, "bf16": Bf16Conv3d}
    batchnorm = nn.BatchNorm3d
