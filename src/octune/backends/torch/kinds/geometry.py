"""How a convolution is placed on its image, for a model's own classes too.

    geometry_of(module)         # -> Geometry, or None where it computes something else

Many models come with a Conv2d that pads by itself, mostly as TensorFlow does (more zeros on the right and at
the bottom than on the left and on top). What such a class does is found by watching it: it must call one
convolution, with its own weight and bias, on its input with zeros around it, and return the result. How many
zeros, and whether that depends on the size of the image, is seen on images of several sizes. An image has
any number of dimensions here.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["SAME", "Convolution", "Geometry", "Pads", "geometry_of", "same_padding"]

log = logging.getLogger("octune")
SAME: Literal["same"] = "same"
# Zeros before and after each dimension, the last dimension first, as in F.pad: left, right, top, bottom.
Pads = tuple[int, ...]
Sizes = tuple[int, ...]  # one number for each dimension of an image, the last one last: height, width
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_FORWARDS = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
_FUNCTIONS = (F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d)


@dataclass(frozen=True, slots=True)
class Geometry:
    """``pads`` are the zeros around an image, or "same": as TensorFlow pads, by the size of the image."""

    stride: Sizes
    dilation: Sizes
    groups: int
    pads: Pads | Literal["same"]

    def settings(self) -> dict[str, Any]:
        """For a layer: ``padding`` is what kernels take where both sides have the same, else ``pads``."""
        shared = {"stride": list(self.stride), "dilation": list(self.dilation), "groups": self.groups}
        if self.pads != SAME and self.pads[::2] == self.pads[1::2]:
            return {**shared, "padding": list(reversed(self.pads[::2]))}
        pads = SAME if self.pads == SAME else list(self.pads)
        return {**shared, "padding": [0] * len(self.stride), "pads": pads}


def same_padding(sizes: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Pads:
    """Zeros around an image, so that there is an output for every ``stride`` of its pixels."""
    totals = [
        max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    return _flat([(total // 2, total - total // 2) for total in totals])


def _flat(sides: Sequence[tuple[int, int]]) -> Pads:
    """(before, after) for each dimension, in the order of F.pad."""
    return tuple(zeros for both in reversed(sides) for zeros in both)


def geometry_of(module: Convolution) -> Geometry | None:
    """What a convolution does to its image; None if it is not a plain convolution of an image with zeros
    around it. Watching one with a forward of its own takes milliseconds.
    """
    rank = module.weight.ndim - 2
    if (
        type(module).forward in _FORWARDS
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    ):
        pads = _flat([(n, n) for n in _each(module.padding, rank)])
        return Geometry(_each(module.stride, rank), _each(module.dilation, rank), module.groups, pads)
    try:
        return _watched(module)
    except Exception:  # a forward of the model's own may do anything, and raise anything
        log.debug("%s cannot be watched", type(module).__name__, exc_info=True)
        return None


def _watched(module: Convolution) -> Geometry | None:
    kernel, seen = tuple(module.weight.shape[2:]), dict[Sizes, Geometry]()
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


def _sizes(module: Convolution) -> Iterator[Sizes]:
    """Small images, of every remainder by the stride."""
    kernel = tuple(module.weight.shape[2:])
    smallest = [d * (k - 1) + 3 for d, k in zip(_each(module.dilation, len(kernel)), kernel, strict=True)]
    for step in range(2 * max(_each(module.stride, len(kernel)))):
        yield tuple(size + step + dim for dim, size in enumerate(smallest))


class _Recorder(TorchFunctionMode):
    """Keeps every convolution: its arguments by name, and its result."""

    signature = inspect.signature(
        lambda input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1: None
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[dict[str, Any], torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _FUNCTIONS:
            bound = self.signature.bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            self.calls.append((bound.arguments, result))
        return result


def _look(module: Convolution, sizes: Sizes) -> Geometry | None:
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
    around = _zeros_around(x, call["input"], len(sizes))
    if around is None:
        return None
    stride, dilation = _each(call["stride"], len(sizes)), _each(call["dilation"], len(sizes))
    within = _argument(call["padding"], tuple(module.weight.shape[2:]), dilation)
    pads = tuple(a + b for a, b in zip(around, within, strict=True))
    return Geometry(stride, dilation, int(call["groups"]), pads)


def _zeros_around(x: torch.Tensor, padded: torch.Tensor, rank: int) -> Pads | None:
    added = [int(b - a) for a, b in zip(x.shape[-rank:], padded.shape[-rank:], strict=True)]
    for before in itertools.product(*(range(total + 1) for total in added)):
        pads = _flat([(first, total - first) for first, total in zip(before, added, strict=True)])
        if torch.equal(F.pad(x, pads), padded):
            return pads
    return None


def _argument(padding: Any, kernel: Sizes, dilation: Sizes) -> Pads:
    """What a convolution itself pads."""
    if padding == "valid":
        return (0, 0) * len(kernel)
    if padding == "same":
        # for a stride of one the size of the image does not matter
        one = (1,) * len(kernel)
        return same_padding(one, kernel, one, dilation)
    return _flat([(n, n) for n in _each(padding, len(kernel))])


def _each(value: Any, rank: int) -> Sizes:
    """One number for each dimension, where one number may stand for all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return tuple(int(n) for n in (values * rank if len(values) == 1 else values))
