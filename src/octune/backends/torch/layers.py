"""The modules that take the place of float ones. Each runs real kernels in eager mode and can be exported.

Activations become uint8 with a zero point, weights int8 around zero: the only pairing that is fast on every
CPU with int8 dot products (oneDNN's signed-activation kernels are an order of magnitude slower).

A layer is made of plain tensors (saved as they are) and a few numbers (``settings``); the kernel's own packed
weights are made from them when they are first needed, so a layer can be copied, pickled and saved. Under
``torch.export`` it emits the packing as part of the graph, where the compiler folds it into a constant.
``forward`` names its argument as the float modules do, because models call them by that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.geometry import SAME, geometry_of, same_padding
from octune.backends.torch.quantize import decomposed, grid, quantize, to_uint8
from octune.calibration import TensorStats, choose_range
from octune.errors import PlanError
from octune.int8 import Grid, Int8Weight, Limit, limited_again
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["LAYERS", "Int8Conv2d", "Int8Weights", "Layer", "quantized_layer"]

# Any: the operators of this namespace are made at run time, and typed as such they would give Any everywhere.
onednn: Any = torch.ops.onednn


_NO_GRID = (torch.empty(0), 0.0)  # compiled code has the grid in its graph


class Layer(nn.Module):
    """Base of all replacements: tensors plus ``settings``, and nothing that depends on the float module."""

    kind: ClassVar[str]

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
    """What a kernel is called with besides its input. To look a tensor up in a module takes as long as a
    small kernel: it is done once.
    """

    packed: torch.Tensor
    weight_scale: torch.Tensor
    zero_points: torch.Tensor
    bias: torch.Tensor | None
    smooth: torch.Tensor | None
    grid: tuple[torch.Tensor, float]


class Int8Weights(Layer):
    """Shared by the int8 layers: the weights, and what they stand for in float."""

    weight_int8: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None
    smooth: torch.Tensor | None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
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

    def _zero_points(self) -> torch.Tensor:
        return torch.zeros_like(self.weight_scale, dtype=torch.int32)

    def limit_again(self) -> None:
        """Make weights that use all 8 bits safe for a CPU that adds pairs of products in 16 bits."""
        made = limited_again(Int8Weight(self.weight_int8.numpy(), self.weight_scale.numpy()))
        self.set_tensors(
            weight_int8=torch.from_numpy(made.values), weight_scale=torch.from_numpy(made.scales)
        )


class Int8Linear(Int8Weights):
    """Static int8: the input's range is known. ``settings``: scale, zero_point.

    With ``smooth``, every channel of the input is multiplied by a number of its own first (see
    octune.repair.smooth).
    """

    kind = "int8_linear"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale, self.zero_point = float(settings["scale"]), int(settings["zero_point"])

    @property
    def in_features(self) -> int:
        return self.weight_int8.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight_int8.shape[0]

    def _ready(self) -> Kernel:
        if torch.compiler.is_compiling():
            packed = onednn.qlinear_prepack.default(self.weight_int8, None)
            return Kernel(packed, self.weight_scale, self._zero_points(), self.bias, self.smooth, _NO_GRID)
        packed, points = onednn.qlinear_prepack(self.weight_int8, None), grid(self.scale, self.zero_point)
        self._kernel = Kernel(packed, self.weight_scale, self._zero_points(), self.bias, self.smooth, points)
        return self._kernel

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        compiling = torch.compiler.is_compiling()
        kernel = self._ready() if compiling or self._kernel is None else self._kernel
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
    """Dynamic int8: the range is taken from every input."""

    kind = "int8_dynamic_linear"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "scale": 1.0, "zero_point": 0})
        self.settings = settings

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        dtype = input.dtype
        x = input if dtype is torch.float32 else input.float()
        if not torch.compiler.is_compiling() and x.numel() == 0:
            return input.new_empty((*input.shape[:-1], self.out_features))
        kernel = self._ready() if torch.compiler.is_compiling() or self._kernel is None else self._kernel
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
            span, down = (
                np.float32(max(high.item(), 0.0)) - np.float32(min(low.item(), 0.0)),
                np.float32(-min(low.item(), 0.0)),
            )
            if not np.isfinite(span):
                return F.linear(x, self.weight, self.bias).to(dtype)  # NaN in, NaN out, as in float
            # In float32, like the exported form: an eager and a compiled model must not differ in the scale.
            scale_ = float(max(span / np.float32(255.0), np.float32(1e-12)))
            q = to_uint8(x, scale_, zero_point_ := int(np.round(down / np.float32(scale_))))
            y = onednn.qlinear_pointwise.default(
                q, scale_, zero_point_, *kernel[:4], 1.0, 0, torch.float32, "none", [], ""
            )
        return y if dtype is torch.float32 else y.to(dtype)


class Int8Conv2d(Int8Weights):
    """Static int8 convolution. ``settings``: scale, zero_point, stride, padding, dilation, groups,
    input_shape, output, pads.

    With ``smooth``, every channel of the input is multiplied by a number of its own first, as in
    :class:`Int8Linear`.

    ``input_shape`` is that of one calibrated sample. The kernel lays out its weights for a size of image;
    packed for an unknown one, they are packed again at every call, which at batch 1 takes several times
    longer than the convolution itself. ``output`` is the scale and zero point that fit what the convolution
    gives, for the compiled form (see ``lowering``). ``pads`` (see ``geometry``) is there only where sides
    differ, which the kernel cannot do.
    """

    kind = "int8_conv2d"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale, self.zero_point = float(settings["scale"]), int(settings["zero_point"])
        self.stride, self.padding, self.dilation = (
            list(settings[name]) for name in ("stride", "padding", "dilation")
        )
        self.groups = int(settings["groups"])

    @property
    def output(self) -> tuple[float, int] | None:
        """Scale and zero point of what it gives, if calibration saw it."""
        known = self.settings.get("output")
        return None if known is None else (float(known[0]), int(known[1]))

    def _ready(self) -> Kernel:
        where = (self.stride, self.padding, self.dilation, self.groups)
        shape = self.settings.get("input_shape")
        if shape is not None:
            left, right, top, bottom = _pads(self.settings, self.weight_int8, shape)
            shape = [*shape[:2], shape[2] + top + bottom, shape[3] + left + right]
        if torch.compiler.is_compiling():
            weight = self.weight_int8
            if self._single:
                weight, shape = F.pad(weight, (0, 0, 0, 0, 0, 1)), shape and [shape[0], 2, *shape[2:]]
            packed = onednn.qconv_prepack.default(
                weight, self.weight_scale, self.scale, self.zero_point, *where, shape
            )
            return Kernel(packed, self.weight_scale, self._zero_points(), self.bias, self.smooth, _NO_GRID)
        packed = onednn.qconv_prepack(
            self.weight_int8, self.weight_scale, self.scale, self.zero_point, *where, shape
        )
        points = grid(self.scale, self.zero_point)
        self._kernel = Kernel(packed, self.weight_scale, self._zero_points(), self.bias, self.smooth, points)
        return self._kernel

    @property
    def _single(self) -> bool:
        """One input channel. Its stride means nothing, so compiled code may take either layout for the other,
        and give wrong numbers: it is compiled with a second channel of zeros.
        """
        return self.weight_int8.shape[1] * self.groups == 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        compiling = torch.compiler.is_compiling()
        kernel = self._ready() if compiling or self._kernel is None else self._kernel
        squeezed = input.ndim == 3
        # A cast that changes nothing still is a node of an exported graph, and keeps the compiler from fusing
        # across it.
        x = input if input.dtype is torch.float32 else input.float()
        x = x.unsqueeze(0) if squeezed else x
        if kernel.smooth is not None:
            x = x * kernel.smooth.reshape(-1, 1, 1)
        if compiling and self._single:
            x = F.pad(x, (0, 0, 0, 0, 0, 1))
        x = x.contiguous(memory_format=torch.channels_last)
        q = to_uint8(x, self.scale, self.zero_point) if compiling else quantize(x, *kernel.grid)
        if "pads" in self.settings:  # behind the quantize: a quarter of the bytes
            q = F.pad(q, _pads(self.settings, self.weight_int8, x.shape), value=self.zero_point)
        y: torch.Tensor = onednn.qconv_pointwise.default(
            q, self.scale, self.zero_point, *kernel[:4],
            self.stride, self.padding, self.dilation, self.groups, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return y.squeeze(0) if squeezed else y


class Int8Embedding(Int8Weights):
    """Rows of int8 with a scale each; only the rows that are read become float."""

    kind = "int8_embedding"

    def limit_again(self) -> None:
        """Rows are only read: there is nothing to overflow."""

    @property
    def num_embeddings(self) -> int:
        return self.weight_int8.shape[0]

    @property
    def embedding_dim(self) -> int:
        return self.weight_int8.shape[1]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.embedding(input, self.weight_int8).float() * self.weight_scale[input].unsqueeze(-1)


class Bf16Linear(Layer):
    """Float in, float out, bfloat16 in between."""

    kind = "bf16_linear"
    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input.bfloat16(), self.weight, self.bias).to(input.dtype)


class Bf16Conv2d(Layer):
    """Float in, float out, bfloat16 in between. ``settings``: stride, padding, dilation, groups, pads."""

    kind = "bf16_conv2d"
    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        where = {name: self.settings[name] for name in ("stride", "padding", "dilation", "groups")}
        x = input.bfloat16()
        if "pads" in self.settings:
            x = F.pad(x, _pads(self.settings, self.weight, x.shape))
        return F.conv2d(x, self.weight, self.bias, **where).to(input.dtype)


def _pads(
    settings: Mapping[str, Any], weight: torch.Tensor, shape: Sequence[int]
) -> tuple[int, int, int, int]:
    """What a convolution adds around an image before the kernel sees it."""
    pads = settings.get("pads", (0, 0, 0, 0))
    if pads != SAME:
        left, right, top, bottom = pads
        return left, right, top, bottom
    kernel = (weight.shape[2], weight.shape[3])
    return same_padding(
        (shape[-2], shape[-1]), kernel, tuple(settings["stride"]), tuple(settings["dilation"])
    )


class Bf16Embedding(Layer):
    """Rows of bfloat16, read as float."""

    kind = "bf16_embedding"
    weight: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.embedding(input, self.weight).float()


LAYERS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        Int8Linear,
        Int8DynamicLinear,
        Int8Conv2d,
        Int8Embedding,
        Bf16Linear,
        Bf16Conv2d,
        Bf16Embedding,
    )
}


def quantized_layer(
    module: nn.Module,
    kind: str,
    scheme: Scheme,
    stats: TensorStats | None,
    output: TensorStats | None = None,
    *,
    limit: Limit,
) -> Layer:
    """The replacement of a float module under a scheme; ``stats`` is what calibration saw of its input,
    ``output`` of its output.
    """
    weight: torch.Tensor = module.get_parameter("weight")
    bias: torch.Tensor | None = getattr(module, "bias", None)
    if kind == "conv1d":
        weight = weight.t()
    geometry = geometry_of(module) if isinstance(module, nn.Conv2d) else None
    where: dict[str, Any] = {} if geometry is None else geometry.settings()
    family = {"conv2d": "conv2d", "embedding": "embedding"}.get(kind, "linear")
    if scheme.dtype == "bf16":
        tensors = {"weight": weight.bfloat16()} | (
            {} if family == "embedding" else {"bias": None if bias is None else bias.bfloat16()}
        )
        return LAYERS[f"bf16_{family}"](**where).set_tensors(**tensors)
    repairs = repairs_of(scheme)
    if scheme.mode == "static" and (stats is None or scheme.range_method is None):
        raise PlanError(f"A static scheme ({scheme}) needs calibration data, and this op has none.")
    floats, groups = weight.detach().float().numpy(), where.get("groups", 1)
    if scheme.mode != "static" or stats is None or scheme.range_method is None:
        # An embedding's rows are only read, never multiplied: there is nothing to overflow.
        limit = Limit.NONE if family == "embedding" else limit
        made = repairs.int8_weight(floats, groups, scheme.granularity, limit)
        if family == "embedding":
            return Int8Embedding().set_tensors(**_stored(made))
        return Int8DynamicLinear().set_tensors(**_stored(made), bias=bias)
    smoothing = repairs.smoothing(stats, [(floats, groups)])
    multiplier = None if smoothing is None else smoothing.multiplier
    made = repairs.int8_weight(floats, groups, scheme.granularity, limit, multiplier)
    if repairs.corrects_bias:
        shift = torch.from_numpy(repairs.bias_shift(stats, floats, made.dequantized(), groups, multiplier))
        bias = shift if bias is None else bias.detach() + shift
    if family == "conv2d":
        where["input_shape"] = [1, *stats.shape[-3:]]
        where["output"] = None
        if output is not None and output.finite:
            given = Grid.affine(output.low, output.high)
            where["output"] = [given.scale, given.zero_point]
    low, high = (
        choose_range(stats, scheme.range_method) if smoothing is None else (smoothing.low, smoothing.high)
    )
    read = Grid.affine(low, high)
    layer = LAYERS[f"int8_{family}"](scale=read.scale, zero_point=read.zero_point, **where)
    smooth = None if multiplier is None else torch.from_numpy(multiplier)
    return layer.set_tensors(**_stored(made), bias=bias, smooth=smooth)


def _stored(made: Int8Weight) -> dict[str, torch.Tensor]:
    """int8 values and the scale of every output, as layers keep them."""
    scales = np.broadcast_to(made.scales, made.values.shape[:1]).copy()
    return {"weight_int8": torch.from_numpy(made.values), "weight_scale": torch.from_numpy(scales)}
