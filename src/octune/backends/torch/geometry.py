"""How a convolution lies on its image, for classes of a model's own too.

    geometry_of(module)         # -> Geometry, or None where it computes something else

Many models come with a Conv2d that pads by itself, mostly as TensorFlow does (more zeros on the right and at
the bottom than on the left and on top). What such a class does is found by watching it: it must call one
convolution, with its own weight and bias, on its input with zeros around it, and give what that gives. How
many zeros, and whether that depends on the size of the image, is seen on images of several sizes.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["SAME", "Geometry", "geometry_of", "same_padding"]

log = logging.getLogger("octune")
SAME: Literal["same"] = "same"
Pads = tuple[int, int, int, int]  # as torch pads: left, right, top, bottom


@dataclass(frozen=True, slots=True)
class Geometry:
    """``pads`` are zeros on the left, right, top and bottom, or "same": as TensorFlow pads, by the size of
    the image.
    """

    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    pads: Pads | Literal["same"]

    def settings(self) -> dict[str, Any]:
        """For a layer: ``padding`` is what kernels take where both sides have the same, else ``pads``."""
        shared = {"stride": list(self.stride), "dilation": list(self.dilation), "groups": self.groups}
        if self.pads != SAME and self.pads[0] == self.pads[1] and self.pads[2] == self.pads[3]:
            return {**shared, "padding": [self.pads[2], self.pads[0]]}
        return {**shared, "padding": [0, 0], "pads": SAME if self.pads == SAME else list(self.pads)}


def same_padding(
    sizes: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Pads:
    """Zeros around an image of (height, width), so that there is an output for every ``stride`` of its
    pixels.
    """
    totals = [
        max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    (top, bottom), (left, right) = ((total // 2, total - total // 2) for total in totals)
    return left, right, top, bottom


# Watching takes milliseconds, and every candidate asks again.
_KNOWN: WeakKeyDictionary[nn.Module, Geometry | None] = WeakKeyDictionary()


def geometry_of(module: nn.Conv2d) -> Geometry | None:
    """What a convolution does to its image; None if it is no plain convolution of an image with zeros around
    it.
    """
    if (
        type(module).forward is nn.Conv2d.forward
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    ):
        top, left = module.padding
        stride, dilation = _pair(module.stride), _pair(module.dilation)
        return Geometry(stride, dilation, module.groups, (int(left), int(left), int(top), int(top)))
    if module not in _KNOWN:
        try:
            _KNOWN[module] = _watched(module)
        except Exception:  # a forward of the model's own may do anything, and raise anything
            log.debug("%s cannot be watched", type(module).__name__, exc_info=True)
            _KNOWN[module] = None
    return _KNOWN[module]


def _watched(module: nn.Conv2d) -> Geometry | None:
    kernel, seen = _pair(module.kernel_size), dict[tuple[int, int], Geometry]()
    for sizes in _sizes(module):
        found = _look(module, sizes)
        if found is None:
            return None
        seen[sizes] = found
    first = next(iter(seen.values()))
    if all(found == first for found in seen.values()):
        return first
    if all(
        found.pads == same_padding(sizes, kernel, found.stride, found.dilation)
        for sizes, found in seen.items()
    ):
        return Geometry(first.stride, first.dilation, first.groups, SAME)
    return None


def _sizes(module: nn.Conv2d) -> Iterator[tuple[int, int]]:
    """Small images, of every remainder by the stride."""
    height, width = (
        d * (k - 1) + 3 for d, k in zip(_pair(module.dilation), _pair(module.kernel_size), strict=True)
    )
    for step in range(2 * max(_pair(module.stride))):
        yield height + step, width + step + 1


class _Recorder(TorchFunctionMode):
    """Keeps every convolution: its arguments by name, and what it gave."""

    signature = inspect.signature(
        lambda input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1: None
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[dict[str, Any], torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, torch.conv2d):
            bound = self.signature.bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            self.calls.append((bound.arguments, result))
        return result


def _look(module: nn.Conv2d, sizes: tuple[int, int]) -> Geometry | None:
    """What it does to one image."""
    # No zero among the pixels, so that zeros around them are seen.
    x = 1 + torch.rand(
        1, module.in_channels, *sizes, dtype=module.weight.dtype, generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode(), _Recorder() as recorder:
        y = module(x)
    if len(recorder.calls) != 1:
        return None
    call, result = recorder.calls[0]
    if call["weight"] is not module.weight or call["bias"] is not module.bias or not torch.equal(result, y):
        return None
    around = _zeros_around(x, call["input"])
    if around is None:
        return None
    stride, dilation = _pair(call["stride"]), _pair(call["dilation"])
    within = _argument(call["padding"], _pair(module.kernel_size), dilation)
    left, right, top, bottom = (a + b for a, b in zip(around, within, strict=True))
    return Geometry(stride, dilation, int(call["groups"]), (left, right, top, bottom))


def _zeros_around(x: torch.Tensor, padded: torch.Tensor) -> Pads | None:
    high, wide = (int(b - a) for a, b in zip(x.shape[-2:], padded.shape[-2:], strict=True))
    for top in range(high + 1):
        for left in range(wide + 1):
            pads = (left, wide - left, top, high - top)
            if torch.equal(F.pad(x, pads), padded):
                return pads
    return None


def _argument(padding: Any, kernel: tuple[int, int], dilation: tuple[int, int]) -> Pads:
    """What a convolution itself pads."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        # for a stride of one the size of the image does not matter
        return same_padding((1, 1), kernel, (1, 1), dilation)
    top, left = _pair(padding)
    return left, left, top, top


def _pair(value: Any) -> tuple[int, int]:
    values = (value, value) if isinstance(value, int) else tuple(value)
    return int(values[0]), int(values[-1])
