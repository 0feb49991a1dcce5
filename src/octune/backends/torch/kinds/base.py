"""What a kind of module says about itself: how it is found, which schemes it has, and what replaces it.

    kind = Linear(module)
    kind.layer(scheme, stats, limit=limit)      # its replacement under a scheme

A kind is a class; an instance is one module of that kind. What all kinds have in common (repairs, int8
weights, ranges) is here; a kind adds its layers, their settings, and where its weight differs from others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from octune.backends.torch.layers import Layer, stored
from octune.calibration import TensorStats, choose_range
from octune.errors import PlanError
from octune.int8 import Grid, Limit
from octune.plan import Scheme
from octune.repair import repairs_of, static_schemes

__all__ = ["Kind"]


class Kind:
    """One module that could be quantized. Subclasses are the kinds."""

    name: ClassVar[str]
    plain: ClassVar[type[nn.Module]]  # the class whose forward the layers compute
    # What replaces a module, by the mode of an int8 scheme, and for "bf16".
    layers: ClassVar[Mapping[str, type[Layer]]]
    channel_axis: ClassVar[int] = -1  # of its input
    has_range: ClassVar[bool] = True  # whether its input is numbers, not indices
    wants_output: ClassVar[bool] = False  # whether the range of its output is of use as well
    batchnorm: ClassVar[type[nn.Module] | None] = None  # what can be folded into it

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @classmethod
    def recognises(cls, module: nn.Module) -> bool:
        """Whether a module is of this kind."""
        return isinstance(module, cls.plain)

    @classmethod
    def schemes(cls) -> tuple[Scheme, ...]:
        """What a module of this kind can run as, if the CPU can."""
        return (
            *(static_schemes() if "static" in cls.layers else ()),
            *(
                scheme
                for mode in ("dynamic", "token", "weight")
                if mode in cls.layers
                for scheme in (Scheme.int8(mode), Scheme.int8(mode, granularity="per_tensor"))
            ),
            *((Scheme.bf16(),) if "bf16" in cls.layers else ()),
            Scheme.fp32(),
        )

    @property
    def obstacle(self) -> str:
        """Why this module cannot be quantized, or an empty string."""
        overridden = type(self.module).forward is not self.plain.forward
        return f"{type(self.module).__name__} computes something of its own" if overridden else ""

    @property
    def weights(self) -> list[nn.Parameter]:
        """The parameters that it multiplies by, or looks up; none if they are computed, not stored."""
        weight = self.module._parameters.get("weight")
        return [] if weight is None else [weight]

    @property
    def weight(self) -> torch.Tensor:
        """(outputs, inputs of a group, *kernel)"""
        return self.module.get_parameter("weight")

    @property
    def bias(self) -> torch.Tensor | None:
        return getattr(self.module, "bias", None)

    @property
    def groups(self) -> int:
        return 1

    def settings(self) -> dict[str, Any]:
        """What all layers of this module need to know besides its tensors."""
        return {}

    def static_settings(self, stats: TensorStats, output: TensorStats | None) -> dict[str, Any]:
        """What a static layer needs to know on top of that, except for the grid of its input."""
        return {}

    def example(self, shape: tuple[int, ...]) -> torch.Tensor:
        """An input to time the module on."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def layer(
        self,
        scheme: Scheme,
        stats: TensorStats | None,
        output: TensorStats | None = None,
        *,
        limit: Limit,
    ) -> Layer:
        """What replaces the module under a scheme. ``stats`` is what calibration saw of its input,
        ``output`` of its output.
        """
        if (scheme.mode or scheme.dtype) not in self.layers:
            raise PlanError(f"A module of the kind {self.name} cannot run as {scheme}.")
        if scheme.dtype == "bf16":
            bias = None if self.bias is None else self.bias.bfloat16()
            return self.layers["bf16"](**self.settings()).set_tensors(
                weight=self.weight.bfloat16(), bias=bias
            )
        if scheme.mode == "static":
            return self._static(scheme, stats, output, limit)
        return self._without_range(scheme, limit)

    def _without_range(self, scheme: Scheme, limit: Limit) -> Layer:
        replacement = self.layers[str(scheme.mode)]
        limit = limit if replacement.multiplies_int8 else Limit.NONE
        made = repairs_of(scheme).int8_weight(self._floats(), self.groups, scheme.granularity, limit)
        return replacement(**self.settings()).set_tensors(**stored(made), bias=self.bias)

    def _static(
        self, scheme: Scheme, stats: TensorStats | None, output: TensorStats | None, limit: Limit
    ) -> Layer:
        repairs, weight, bias = repairs_of(scheme), self._floats(), self.bias
        if stats is None or scheme.range_method is None:
            raise PlanError(f"A static scheme ({scheme}) needs calibration data, and this op has none.")
        smoothing = repairs.smoothing(stats, [(weight, self.groups)])
        multiplier = None if smoothing is None else smoothing.multiplier
        made = repairs.int8_weight(weight, self.groups, scheme.granularity, limit, multiplier)
        if repairs.corrects_bias:
            shift = repairs.bias_shift(stats, weight, made.dequantized(), self.groups, multiplier)
            bias = torch.from_numpy(shift) if bias is None else bias.detach() + torch.from_numpy(shift)
        low, high = (
            choose_range(stats, scheme.range_method) if smoothing is None else (smoothing.low, smoothing.high)
        )
        grid = Grid.affine(low, high)
        layer = self.layers["static"](
            scale=grid.scale,
            zero_point=grid.zero_point,
            **self.settings(),
            **self.static_settings(stats, output),
        )
        smooth = None if multiplier is None else torch.from_numpy(multiplier)
        return layer.set_tensors(**stored(made), bias=bias, smooth=smooth)

    def _floats(self) -> Any:
        return self.weight.detach().float().numpy()
