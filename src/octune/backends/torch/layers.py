"""What the modules that replace float ones have in common; the modules themselves are in ``kinds``. Each runs
real kernels in eager mode and can be exported.

Activations become uint8 with a zero point, weights int8 around zero: the only pairing that is fast on every
CPU with int8 dot products (oneDNN's signed-activation kernels are an order of magnitude slower).

A layer is made of plain tensors (saved as they are) and a few numbers (``settings``); the kernel's own packed
weights are made from them when they are first needed, so a layer can be copied, pickled and saved. Under
``torch.export`` it emits the packing as part of the graph, where the compiler folds it into a constant.
``forward`` names its argument as the float modules do, because models call them by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from octune.backends.torch.quantize import grid
from octune.int8 import Int8Weight, limited_again

__all__ = ["Bf16Layer", "Int8Layer", "Layer", "limit_again", "onednn", "stored"]

# Any: the operators of this namespace are made at run time, so nothing is known about their types.
onednn: Any = torch.ops.onednn


_NO_GRID = (torch.empty(0), 0.0)  # compiled code has the grid in its graph


def limit_again(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The int8 weights among the tensors of a layer, and their scales, safe for a CPU that adds pairs of
    products in 16 bits.
    """
    limited: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        if name.endswith("_int8"):
            scale = f"{name.removesuffix('_int8')}_scale"
            made = limited_again(Int8Weight(values.numpy(), tensors[scale].numpy()))
            limited |= {name: torch.from_numpy(made.values), scale: torch.from_numpy(made.scales)}
    return limited


class Layer(nn.Module):
    """Base of all replacements: tensors plus ``settings``, and nothing that depends on the float module."""

    kind: ClassVar[str]  # what a saved model calls it
    multiplies_int8: ClassVar[bool] = False  # on some CPUs the sums of such products may overflow

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self._kernel: Kernel | None = None  # made when it is first needed

    def set_tensors(self, **tensors: torch.Tensor | None) -> Layer:
        """Take the tensors as buffers. Returns itself."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone().contiguous() if tensor is not None else None)
        self._kernel = None
        return self

    def limit_again(self) -> None:
        """Make weights that use all 8 bits safe for a CPU that adds pairs of products in 16 bits."""
        self.set_tensors(**limit_again(dict(self.named_buffers())))

    def _apply(self, fn: Any, recurse: bool = True) -> Layer:
        # .half(), .to(device) and the like have no meaning here: the kernels take exactly these types.
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernel": None}

    def extra_repr(self) -> str:
        return ", ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in self.settings.items()
        )


class Kernel(NamedTuple):
    """What a kernel is called with besides its input. Looking a tensor up in a module takes as long as a
    small kernel, so it is done once.
    """

    packed: torch.Tensor
    weight_scale: torch.Tensor
    zero_points: torch.Tensor
    bias: torch.Tensor | None
    smooth: torch.Tensor | None
    grid: tuple[torch.Tensor, float]


class Int8Layer(Layer):
    """Shared by the int8 layers: the weights, what they stand for in float, and the grid of the input."""

    multiplies_int8 = True

    weight_int8: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None
    smooth: torch.Tensor | None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Layers whose input has no known range do not read these.
        self.scale, self.zero_point = float(settings.get("scale", 1.0)), int(settings.get("zero_point", 0))
        self.set_tensors(bias=None, smooth=None)

    @property
    def weight(self) -> torch.Tensor:
        """The float weights that the int8 ones stand for; models sometimes look at their dtype or device."""
        one = (1,) * (self.weight_int8.ndim - 2)
        weight = self.weight_int8.float() * self.weight_scale.reshape(-1, 1, *one)
        if self.smooth is None:
            return weight
        by_group = self.smooth.reshape(-1, 1, weight.shape[1], *one)
        return (weight.reshape(len(by_group), -1, *weight.shape[1:]) * by_group).reshape_as(weight)

    @property
    def output(self) -> tuple[float, int] | None:
        """Scale and zero point of what it returns, if that is known."""
        known = self.settings.get("output")
        return None if known is None else (float(known[0]), int(known[1]))

    def packed(self) -> torch.Tensor:
        """The weights as the kernel wants them."""
        raise NotImplementedError

    def ready(self) -> Kernel:
        """What the kernel is called with: part of the graph in an export, else made once and kept."""
        compiling = torch.compiler.is_compiling()
        points = _NO_GRID if compiling else grid(self.scale, self.zero_point)
        packed, zeros = self.packed(), torch.zeros_like(self.weight_scale, dtype=torch.int32)
        kernel = Kernel(packed, self.weight_scale, zeros, self.bias, self.smooth, points)
        if not compiling:
            self._kernel = kernel
        return kernel


class Bf16Layer(Layer):
    """Shared by the bfloat16 layers."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.set_tensors(bias=None)


def stored(made: Int8Weight) -> dict[str, torch.Tensor]:
    """int8 values and the scale of every output, as layers keep them."""
    scales = np.broadcast_to(made.scales, made.values.shape[:1]).copy()
    return {"weight_int8": torch.from_numpy(made.values), "weight_scale": torch.from_numpy(scales)}
