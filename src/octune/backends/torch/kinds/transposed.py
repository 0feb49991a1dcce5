"""Transposed convolutions, as ordinary ones whose outputs are interleaved.

With a stride of 2, even pixels of the result come from one half of the kernel, odd ones from the other. So
each half (a *phase*) is an ordinary convolution with a stride of 1; all phases together are one with more
outputs, whose pixels are put between each other afterwards. Its int8 kernels, repairs and limits are those of
any convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.kinds.conv import Conv, Int8Conv, Int8Conv1d, Int8Conv2d, Int8Conv3d
from octune.backends.torch.kinds.geometry import Geometry, Sizes
from octune.backends.torch.layers import Bf16Layer, Layer
from octune.calibration import TensorStats
from octune.int8 import Limit
from octune.plan import Scheme

__all__ = ["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Phases", "outputs_first"]


def outputs_first(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """(inputs, outputs of a group, *kernel) as (outputs, inputs of a group, *kernel), and the reverse."""
    return torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Phases:
    """A transposed convolution's arguments, and the ordinary convolution that has all of its phases."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    output_padding: Sizes
    dilation: Sizes
    groups: int

    @classmethod
    def of(cls, module: Any) -> Phases:
        """Those of a module."""
        return cls(
            module.kernel_size,
            module.stride,
            module.padding,
            module.output_padding,
            module.dilation,
            module.groups,
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Phases:
        """The inverse of ``asdict``."""
        given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items()}
        return cls(**given)

    @property
    def reach(self) -> Sizes:
        """How far the kernel's last number is from its first."""
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))

    @property
    def spread(self) -> Sizes:
        """Distances between the numbers of a kernel before it is cut into phases: a single phase can be
        dilated, of several each would have its own distances.
        """
        return tuple(1 if s == 1 else d for s, d in zip(self.stride, self.dilation, strict=True))

    @property
    def ignores_pixels(self) -> bool:
        """Whether its padding cuts off all that pixels at the edge contribute to."""
        return any(p > r for p, r in zip(self.padding, self.reach, strict=True))

    def after(self, output_padding: Sequence[int]) -> Sizes:
        """Zeros behind the image."""
        return tuple(
            (r + o - p) // s
            for r, o, p, s in zip(self.reach, output_padding, self.padding, self.stride, strict=True)
        )

    def geometry(self) -> Geometry:
        """How the ordinary convolution is placed."""
        before = (r // s - p // s for r, p, s in zip(self.reach, self.padding, self.stride, strict=True))
        pads = list(zip(before, self.after(self.output_padding), strict=True))
        dilation = tuple(d if s == 1 else 1 for d, s in zip(self.dilation, self.stride, strict=True))
        flat = tuple(zeros for both in reversed(pads) for zeros in both)
        return Geometry((1,) * len(self.kernel), dilation, self.groups, flat)

    def split(self, weight: torch.Tensor) -> torch.Tensor:
        """The module's weight as the ordinary convolution's: for each group its phases, for each of these
        its outputs.
        """
        made = outputs_first(weight, self.groups)
        for dim, (s, step) in enumerate(zip(self.stride, self.spread, strict=True)):
            at = 2 + 2 * dim
            made = _spread(made.movedim(at, -1), step)
            made = torch.unflatten(F.pad(made, (0, -made.shape[-1] % s)), -1, (-1, s)).flip(-2)
            made = made.movedim((-2, -1), (at, at + 1))
        rank = len(self.kernel)
        made = torch.unflatten(
            made, 0, (self.groups, -1)
        )  # group, output, input, (tap, phase) for each dimension
        taps, phases = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
        return made.permute(0, *phases, 1, 2, *taps).flatten(0, 1 + rank).contiguous()

    def join(self, weight: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`split`."""
        rank = len(self.kernel)
        made = torch.unflatten(weight, 0, (self.groups, *self.stride, -1))
        order = [n for dim in range(rank) for n in (3 + rank + dim, 1 + dim)]
        made = made.permute(0, 1 + rank, 2 + rank, *order).flatten(0, 1)
        for dim, (k, step) in enumerate(zip(self.kernel, self.spread, strict=True)):
            made = made.flip(2 + dim).flatten(2 + dim, 3 + dim)
            made = made.movedim(2 + dim, -1)[..., : step * (k - 1) + 1 : step].movedim(-1, 2 + dim)
        return outputs_first(made, self.groups).contiguous()

    def repeat(self, by_output: torch.Tensor) -> torch.Tensor:
        """A number for each output of the module as one for each of the ordinary convolution."""
        phases = math.prod(self.stride)
        return by_output.reshape(self.groups, 1, -1).expand(-1, phases, -1).reshape(-1)

    def interleave(self, y: torch.Tensor) -> torch.Tensor:
        """What the ordinary convolution returns, with all phases of an output as one image."""
        if math.prod(self.stride) == 1:
            return y
        rank = len(self.stride)
        # Channels last, as the kernel returns them: the numbers of one pixel stay together.
        y = torch.unflatten(y.movedim(1, -1), -1, (self.groups, *self.stride, -1))
        order = [n for dim in range(rank) for n in (1 + dim, 2 + rank + dim)]
        y = y.permute(0, *order, 1 + rank, 2 + 2 * rank)
        return y.reshape(
            y.shape[0],
            *(y.shape[1 + 2 * dim] * s for dim, s in enumerate(self.stride)),
            y.shape[-1] * self.groups,
        ).movedim(-1, 1)

    def padding_for(self, image: Sequence[int], output_size: Sequence[int] | None) -> Sizes:
        """The ``output_padding`` with which an image becomes one of that size."""
        if output_size is None:
            return self.output_padding
        rank = len(self.kernel)
        least = [
            (n - 1) * s - 2 * p + r + 1
            for n, s, p, r in zip(image[-rank:], self.stride, self.padding, self.reach, strict=True)
        ]
        found = tuple(n - m for n, m in zip(output_size[-rank:], least, strict=True))
        if not all(0 <= n < max(s, d) for n, s, d in zip(found, self.stride, self.dilation, strict=True)):
            raise ValueError(
                f"output_size is {list(output_size)}; of an image of {list(image[-rank:])} this layer makes "
                f"{least} to {[n + s - 1 for n, s in zip(least, self.stride, strict=True)]}"
            )
        return found


def _spread(weight: torch.Tensor, step: int) -> torch.Tensor:
    """Zeros between the numbers of the last dimension."""
    if step == 1:
        return weight
    return F.pad(weight.unsqueeze(-1), (0, step - 1)).flatten(-2)[..., : step * (weight.shape[-1] - 1) + 1]


class Int8ConvTranspose(Int8Conv):
    """The ordinary convolution, and what its outputs are put together to. ``settings``: those of the
    convolution, and ``transposed``, the arguments of the module.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.phases = Phases.from_json(settings["transposed"])

    @property
    def weight(self) -> torch.Tensor:
        return self.phases.join(super().weight)

    def forward(self, input: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        phases, squeezed = self.phases, input.ndim == self.rank + 1
        x = input.unsqueeze(0) if squeezed else input
        asked, behind = phases.padding_for(x.shape, output_size), phases.after(phases.output_padding)
        if output_size is not None:
            more = [max(n - m, 0) for n, m in zip(phases.after(asked), behind, strict=True)]
            x = F.pad(x, [n for one in reversed(more) for n in (0, one)])
            behind = tuple(n + m for n, m in zip(behind, more, strict=True))
        y = phases.interleave(super().forward(x))
        for dim, (s, p, r) in enumerate(zip(phases.stride, phases.padding, phases.reach, strict=True)):
            first, rest = p % s, s * (behind[dim] + 1) - 1 - (r + asked[dim] - p)
            if first or rest:
                y = y.narrow(2 + dim, first, y.shape[2 + dim] - first - rest)
        return y.squeeze(0) if squeezed else y


class Bf16ConvTranspose(Bf16Layer):
    """Float in, float out, bfloat16 in between. ``settings``: the arguments of the module."""

    convolve: ClassVar[Callable[..., torch.Tensor]]

    def forward(self, input: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        phases = Phases.from_json(self.settings)
        return self.convolve(
            input.bfloat16(), self.weight, self.bias, phases.stride, phases.padding,
            phases.padding_for(input.shape, output_size), phases.groups, phases.dilation,
        ).to(input.dtype)  # fmt: skip


class ConvTranspose(Conv):
    """Shared by transposed convolutions of any number of dimensions."""

    module: Any

    @property
    def obstacle(self) -> str:
        too_wide = "its padding is wider than its kernel, for which there is no int8 kernel"
        return super(Conv, self).obstacle or (too_wide if self.phases.ignores_pixels else "")

    @cached_property
    def phases(self) -> Phases:
        """What is computed instead."""
        return Phases.of(self.module)

    @cached_property
    def geometry(self) -> Geometry | None:
        return self.phases.geometry()

    @property
    def weight(self) -> torch.Tensor:
        return self.phases.split(super().weight)

    @property
    def bias(self) -> torch.Tensor | None:
        bias = super().bias
        return None if bias is None else self.phases.repeat(bias)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "transposed": asdict(self.phases)}

    def layer(
        self,
        scheme: Scheme,
        stats: TensorStats | None,
        output: TensorStats | None = None,
        *,
        limit: Limit,
    ) -> Layer:
        if scheme.dtype != "bf16":
            return super().layer(scheme, stats, output, limit=limit)
        weight, bias = self.module.weight.bfloat16(), super().bias
        return self.layers["bf16"](**asdict(self.phases)).set_tensors(
            weight=weight, bias=None if bias is None else bias.bfloat16()
        )


class Int8ConvTranspose1d(Int8ConvTranspose, Int8Conv1d):
    kind = "int8_conv_transpose1d"


class Int8ConvTranspose2d(Int8ConvTranspose, Int8Conv2d):
    kind = "int8_conv_transpose2d"


class Int8ConvTranspose3d(Int8ConvTranspose, Int8Conv3d):
    kind = "int8_conv_transpose3d"


class Bf16ConvTranspose1d(Bf16ConvTranspose):
    kind = "bf16_conv_transpose1d"
    convolve = staticmethod(F.conv_transpose1d)


class Bf16ConvTranspose2d(Bf16ConvTranspose):
    kind = "bf16_conv_transpose2d"
    convolve = staticmethod(F.conv_transpose2d)


class Bf16ConvTranspose3d(Bf16ConvTranspose):
    kind = "bf16_conv_transpose3d"
    convolve = staticmethod(F.conv_transpose3d)


class ConvTranspose1d(ConvTranspose):
    """``nn.ConvTranspose1d``."""

    name = "conv_transpose1d"
    plain = nn.ConvTranspose1d
    channel_axis = -2  # an image may come without a batch
    layers: ClassVar = {"static": Int8ConvTranspose1d, "bf16": Bf16ConvTranspose1d}
    batchnorm = nn.BatchNorm1d


class ConvTranspose2d(ConvTranspose):
    """``nn.ConvTranspose2d``."""

    name = "conv_transpose2d"
    plain = nn.ConvTranspose2d
    channel_axis = -3  # an image may come without a batch
    layers: ClassVar = {"static": Int8ConvTranspose2d, "bf16": Bf16ConvTranspose2d}
    batchnorm = nn.BatchNorm2d


class ConvTranspose3d(ConvTranspose):
    """``nn.ConvTranspose3d``."""

    name = "conv_transpose3d"
    plain = nn.ConvTranspose3d
    channel_axis = -4  # an image may come without a batch
    layers: ClassVar = {"static": Int8ConvTranspose3d, "bf16": Bf16ConvTranspose3d}
    batchnorm = nn.BatchNorm3d
