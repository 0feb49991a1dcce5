"""Activations in uint8, as the int8 kernels read them.

    q = to_uint8(x, scale, zero_point)     # x / scale + zero_point, rounded to even, from 0 to 255

The one kernel of PyTorch that does this in a single pass belongs to the quantized tensor types, which are
being removed. What is here takes four passes of plain arithmetic and returns the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers torch.ops.quantized_decomposed

__all__ = ["decomposed", "dynamic_grid", "grid", "quantize", "to_uint8"]

# Any: the operators of this namespace are made at run time, so nothing is known about their types.
decomposed: Any = torch.ops.quantized_decomposed

# Floats of this size are integers apart, so that adding it rounds to the nearest, ties to even, and leaves
# the integer in the lowest bits.
_ROUNDER = torch.tensor(1.5 * 2**23, dtype=torch.float32, device="cpu")
# Elements at a time: a large activation need not become another one four times its size, whose fresh memory
# costs more than the arithmetic.
_PIECE = 1 << 19
# Below this, what counts is how many operators are called, above it how fast each is.
_SMALL = 1 << 12
# The memory layout without gaps that is not plain: of anything else, and of tensors with five dimensions.
_CHANNELS_LAST = torch.channels_last, torch.channels_last_3d


def to_uint8(x: torch.Tensor, scale: float | torch.Tensor, zero_point: int | torch.Tensor) -> torch.Tensor:
    """Quantize a float32 tensor; the result has its memory layout, plain or with channels last."""
    if torch.compiler.is_compiling():
        exported: torch.Tensor = decomposed.quantize_per_tensor.default(
            x, scale, zero_point, 0, 255, torch.uint8
        )
        return exported
    return quantize(x, *grid(float(scale), int(zero_point)))


def quantize(x: torch.Tensor, offset: torch.Tensor, multiplier: float) -> torch.Tensor:
    """The same in eager mode, on a :func:`grid` that is known already."""
    if not x.is_contiguous() and not x.is_contiguous(memory_format=_CHANNELS_LAST[x.ndim == 5]):
        x = x.contiguous()
    if x.numel() <= _SMALL:
        return _on_grid(x, offset, multiplier).round_().byte()
    if x.numel() <= _PIECE:
        return _rounded(x, offset, multiplier).byte()
    q = torch.empty_like(x, dtype=torch.uint8)
    for piece, place in zip(torch.split(_flat(x), _PIECE), torch.split(_flat(q), _PIECE), strict=True):
        place.copy_(_rounded(piece, offset, multiplier))
    return q


def _rounded(x: torch.Tensor, offset: torch.Tensor, multiplier: float) -> torch.Tensor:
    """Integers whose lowest byte is the quantized value: the fastest way from float to byte."""
    return _on_grid(x, offset, multiplier).add_(_ROUNDER).view(torch.int32)


def _on_grid(x: torch.Tensor, offset: torch.Tensor, multiplier: float) -> torch.Tensor:
    """Quantized, but for the rounding."""
    # One multiply-add, not two steps: with a rounding in between, values near a tie would come out
    # differently.
    return torch.add(offset, x, alpha=multiplier).clamp_(0, 255)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


@lru_cache(maxsize=1024)
def grid(scale: float, zero_point: int) -> tuple[torch.Tensor, float]:
    """What to add and what to multiply with. The inverse is computed in float32, as in the kernels."""
    return torch.full_like(_ROUNDER, zero_point), float(np.float32(1) / np.float32(scale))


def dynamic_grid(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point for numbers of that range. In float32, like the exported form: an eager and a
    compiled model must not differ in the scale.
    """
    low32, high32 = np.float32(min(low, 0.0)), np.float32(max(high, 0.0))
    scale = float(max((high32 - low32) / np.float32(255.0), np.float32(1e-12)))
    return scale, int(np.round(-low32 / np.float32(scale)))
