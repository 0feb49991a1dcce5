"""Recurrent layers in int8: all time steps, layers and directions in one call.

    output, hidden, cell = torch.ops.octune.recurrent(x, state, weights, None, "lstm", False, True, key)

PyTorch's dynamic kernels multiply the inputs of all time steps at once, and the hidden state of each by int8
weights that stay in the cache of the CPU, where float weights often do not fit. Activations become uint8 with
a range of their own at every step. The kernels take weights as packed objects, which no exported program can
hold; so in programs a layer is this op, which takes plain tensors and packs those of a ``key`` at one place
in memory once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph

from octune.backends.torch import steps
from octune.backends.torch.steps import Weights, directions

__all__ = ["finite", "pack", "rename_recurrences", "run", "run_in_float", "whole_layers"]

_KEPT = 64  # packed layers of programs; those that were not called for longest are packed again

_packed: OrderedDict[tuple[str, ...], list[Any]] = OrderedDict()
_quantized: Any = torch.ops.quantized
aten: Any = torch.ops.aten


def whole_layers(cell: str) -> bool:
    """Whether this PyTorch has an int8 kernel for whole layers of a cell. It has one for gated cells, which
    belong to the quantized tensor types that are being removed. They are up to twice as fast as
    :mod:`~octune.backends.torch.steps`.
    """
    return (
        cell in ("lstm", "gru")
        and hasattr(torch, "_make_per_channel_quantized_tensor")
        and all(
            hasattr(_quantized, name) for name in ("linear_prepack", "make_quantized_cell_params_dynamic")
        )
    )


def pack(weights: Sequence[torch.Tensor], cell: str) -> list[Any]:
    """The weights of every layer and direction as the kernels want them."""
    return [_parameters(w) for w in directions(weights)] if whole_layers(cell) else list(weights)


def rename_recurrences(graph: Graph) -> None:
    """After the weights in a program were limited: other keys for other weights."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.octune.recurrent.default:
            node.args = (*node.args[:-1], f"{node.args[-1]} limited")


def _parameters(w: Weights) -> Any:
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"  # what packs decides what multiplies
    try:
        packed = [
            _quantized.linear_prepack(
                torch._make_per_channel_quantized_tensor(
                    values, scales.double(), torch.zeros(len(scales), dtype=torch.long), 0
                ),
                bias,
            )
            for values, scales, bias in ((w.w_ih, w.scale_ih, w.b_ih), (w.w_hh, w.scale_hh, w.b_hh))
        ]
    finally:
        torch.backends.quantized.engine = engine
    return _quantized.make_quantized_cell_params_dynamic(*packed, w.b_ih, w.b_hh, False)


def run(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    packed: Sequence[Any],
    batch_sizes: torch.Tensor | None,
    cell: str,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Output and last states. With ``batch_sizes``, x is the data of a packed sequence."""
    if not whole_layers(cell):
        return steps.run(x, state, packed, batch_sizes, cell, bidirectional, batch_first)
    kernel = aten.quantized_lstm if cell == "lstm" else aten.quantized_gru
    types = {"dtype": torch.qint8, "use_dynamic": True} if cell == "lstm" else {}
    layers = len(packed) // (1 + bidirectional)
    tail = (packed, True, layers, 0.0, False, bidirectional)
    return _called(kernel, x.contiguous(), state, batch_sizes, tail, cell, batch_first, **types)


def _called(
    kernel: Any,
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    batch_sizes: torch.Tensor | None,
    tail: tuple[Any, ...],
    cell: str,
    batch_first: bool,
    **types: Any,
) -> tuple[torch.Tensor, ...]:
    """A kernel has one overload for a batch, and one for the data of a packed sequence."""
    start: Any = list(state) if cell == "lstm" else state[0]
    made: tuple[torch.Tensor, ...] = (
        kernel.input(x, start, *tail, batch_first, **types)
        if batch_sizes is None
        else kernel.data(x, batch_sizes, start, *tail, **types)
    )
    return made


def finite(*tensors: torch.Tensor) -> bool:
    """Whether the kernels can be given these: they take NaN for any number, and refuse infinity. An empty
    tensor has no range.
    """
    return all(tensor.numel() > 0 and bool(torch.isfinite(_span(tensor))) for tensor in tensors)


def _span(tensor: torch.Tensor) -> torch.Tensor:
    low, high = torch.aminmax(tensor)
    return high - low


def run_in_float(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    batch_sizes: torch.Tensor | None,
    cell: str,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """What float gives with the weights that the int8 ones stand for."""
    floats: list[torch.Tensor] = []
    for w in directions(weights):
        floats += [w.w_ih * w.scale_ih.unsqueeze(1), w.w_hh * w.scale_hh.unsqueeze(1), w.b_ih, w.b_hh]
    kernel = getattr(aten, cell)
    layers = len(floats) // 4 // (1 + bidirectional)
    tail = (floats, True, layers, 0.0, False, bidirectional)
    return _called(kernel, x, state, batch_sizes, tail, cell, batch_first)


@torch.library.custom_op("octune::recurrent", mutates_args=())
def _recurrent(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    cell: str,
    bidirectional: bool,
    batch_first: bool,
    key: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``key`` stands for the contents of ``weights``: equal keys, equal weights. Only an LSTM has a cell
    state; for others an empty tensor is in its place.
    """
    how = (None, cell, bidirectional, batch_first)
    if finite(x, *state):
        # A program could claim the key of another one; where its weights lie it does not choose.
        place = (key, *(str(weight.data_ptr()) for weight in weights))
        packed = _packed.pop(place, None) or pack(weights, cell)
        _packed[place] = packed
        while len(_packed) > _KEPT:
            _packed.popitem(last=False)
        parts = run(x, state, packed, *how)
    else:
        parts = run_in_float(x, state, weights, *how)
    # Compiled code reads memory in the order that it was told of below.
    made = [part.contiguous() for part in parts]
    return made[0], made[1], made[2] if cell == "lstm" else x.new_empty(0)


@_recurrent.register_fake
def _shapes(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    cell: str,
    bidirectional: bool,
    batch_first: bool,
    key: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = state[0]
    output = x.new_empty(*x.shape[:-1], hidden.shape[-1] * (1 + bidirectional))
    other = state[1].shape if cell == "lstm" else (0,)
    return output, x.new_empty(hidden.shape), x.new_empty(other)
