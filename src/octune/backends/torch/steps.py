"""Recurrent layers in int8 without any packed objects: plain ones, for which PyTorch has no kernels of whole
layers, and all of them where it has none any more.

    output, hidden, cell = run(x, state, weights, None, "lstm", bidirectional=False, batch_first=True)

The inputs of all time steps are multiplied at once, and the hidden state step by step. Activations become
uint8: inputs in one range, the hidden state in one of its own at every step. A step is a dozen small
operators, so each writes into memory that is there already, and the product is that of plain matrices
(``torch._int_mm``), which takes weights as they are: calling oneDNN's linear layer takes longer than
multiplying one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch

from octune.backends.torch.quantize import dynamic_grid, grid, quantize

__all__ = ["PER_DIRECTION", "Weights", "directions", "run"]

# The zero point of the hidden state, and half of a level, which makes a rounding of what cuts off the rest.
_ZERO = 128
_MIDDLE = torch.tensor(_ZERO + 0.5, dtype=torch.float32, device="cpu")
_TINY = 1e-30  # a hidden state of zeros has a range, too


class Weights(NamedTuple):
    """Those of one direction of one layer: int8 and scales for the input and for the hidden state, and two
    biases.
    """

    w_ih: torch.Tensor
    scale_ih: torch.Tensor
    w_hh: torch.Tensor
    scale_hh: torch.Tensor
    b_ih: torch.Tensor
    b_hh: torch.Tensor


PER_DIRECTION = len(Weights._fields)


def directions(weights: Sequence[torch.Tensor]) -> list[Weights]:
    """Of every layer and direction those that belong together."""
    return [
        Weights(*weights[start : start + PER_DIRECTION]) for start in range(0, len(weights), PER_DIRECTION)
    ]


@torch.no_grad()
def run(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    batch_sizes: torch.Tensor | None,
    cell: str,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Output and last states. With ``batch_sizes``, x is the data of a packed sequence."""
    turned = batch_first and batch_sizes is None
    x = x.transpose(0, 1) if turned else x
    sizes = [x.shape[1]] * x.shape[0] if batch_sizes is None else batch_sizes.tolist()
    data = x.flatten(0, -2)
    step, ends, outputs = _STEPS[cell], [], list[torch.Tensor]()
    for index, own in enumerate(directions(weights)):
        end = [part[index].clone() for part in state]
        outputs.append(step(data, end, own, sizes, bool(bidirectional and index % 2)))
        ends.append(end)
        if len(outputs) == 1 + bidirectional:
            data, outputs = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1), []
    made = data.reshape(*x.shape[:-1], -1)
    return made.transpose(0, 1) if turned else made, *map(torch.stack, zip(*ends, strict=True))


def _lstm(
    x: torch.Tensor, state: list[torch.Tensor], w: Weights, sizes: list[int], reverse: bool
) -> torch.Tensor:
    """All steps; ``state`` becomes the last one."""
    # tanh(x) is 2 * sigmoid(2 * x) - 1, so that all gates are one sigmoid
    factor = torch.ones(4, 1).index_fill_(0, torch.tensor(2), 2.0).expand(4, len(w.b_hh) // 4).reshape(-1)
    gates = _projected(x, w.w_ih, w.scale_ih * factor, (w.b_ih + w.b_hh) * factor)
    scale, shift = w.scale_hh * factor, _shift(w.w_hh, w.scale_hh) * factor
    outputs = x.new_empty(len(x), w.w_hh.shape[1])
    for span, rows in _runs(sizes, reverse):
        hidden, cell = (part[:rows] for part in state)
        product, tangent = _Product(w.w_hh, rows), torch.empty_like(cell)
        whole = gates[span].view(-1, rows, gates.shape[1])
        parts = (whole, *whole.chunk(4, -1), outputs[span].view(-1, rows, outputs.shape[1]))
        for gate, i, f, g, o, output in zip(*(_steps(part, reverse) for part in parts), strict=True):
            step = product(hidden)
            gate.addcmul_(product.sums, scale, value=step).add_(shift, alpha=step).sigmoid_()
            cell.mul_(f).sub_(i).addcmul_(i, g, value=2.0)
            hidden = torch.mul(o, torch.tanh(cell, out=tangent), out=output)
        state[0][:rows] = hidden
    return outputs


def _gru(
    x: torch.Tensor, state: list[torch.Tensor], w: Weights, sizes: list[int], reverse: bool
) -> torch.Tensor:
    gates, shift = _projected(x, w.w_ih, w.scale_ih, w.b_ih), _shift(w.w_hh, w.scale_hh)
    size = w.w_hh.shape[1]
    outputs = x.new_empty(len(x), size)
    for span, rows in _runs(sizes, reverse):
        hidden, product = state[0][:rows], _Product(w.w_hh, rows)
        own = product.sums[:, : 2 * size], product.sums[:, 2 * size :]
        whole = gates[span].view(-1, rows, 3 * size)
        both, new = whole[..., : 2 * size], whole[..., 2 * size :]
        parts = (both, *both.chunk(2, -1), new, outputs[span].view(-1, rows, size))
        for gate, r, z, n, output in zip(*(_steps(part, reverse) for part in parts), strict=True):
            step = product(hidden)
            torch.addcmul(w.b_hh, product.sums, w.scale_hh, value=step, out=product.sums)
            product.sums.add_(shift, alpha=step)
            gate.add_(own[0]).sigmoid_()
            n.addcmul_(r, own[1]).tanh_()
            hidden = torch.lerp(n, hidden, z, out=output)
        state[0][:rows] = hidden
    return outputs


def _plain(
    activate: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    state: list[torch.Tensor],
    w: Weights,
    sizes: list[int],
    reverse: bool,
) -> torch.Tensor:
    outputs = _projected(x, w.w_ih, w.scale_ih, w.b_ih + w.b_hh)
    shift = _shift(w.w_hh, w.scale_hh)
    for span, rows in _runs(sizes, reverse):
        hidden, product = state[0][:rows], _Product(w.w_hh, rows)
        for output in _steps(outputs[span].view(-1, rows, outputs.shape[1]), reverse):
            step = product(hidden)
            output.addcmul_(product.sums, w.scale_hh, value=step).add_(shift, alpha=step)
            hidden = activate(output)
        state[0][:rows] = hidden
    return outputs


_STEPS: Mapping[str, Callable[..., torch.Tensor]] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": partial(_plain, torch.tanh_),
    "rnn_relu": partial(_plain, torch.relu_),
}


def _runs(sizes: list[int], reverse: bool) -> Iterator[tuple[slice, int]]:
    """Where steps with equally many rows lie, in the order of computing them."""
    runs, end = list[tuple[slice, int]](), 0
    for rows, alike in groupby(sizes):
        begin, end = end, end + rows * len(list(alike))
        runs.append((slice(begin, end), rows))
    return reversed(runs) if reverse else iter(runs)


def _steps(part: torch.Tensor, reverse: bool) -> tuple[torch.Tensor, ...]:
    steps: tuple[torch.Tensor, ...] = part.unbind()
    return steps[::-1] if reverse else steps


def _projected(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """What the inputs of all steps add to the gates."""
    low, high = torch.aminmax(x)
    step, zero = dynamic_grid(low.item(), high.item())
    sums = torch._int_mm(quantize(x.contiguous(), *grid(step, zero)), _turned(weight)).float()
    shift = bias + _shift(weight, scale) * (step * zero / _ZERO)
    return torch.addcmul(shift, sums, scale, value=step, out=sums)


def _shift(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What the zero point adds to the sums of every output, in units of the input's scale."""
    ones = torch.ones(1, weight.shape[1], dtype=torch.uint8)
    return torch._int_mm(ones, _turned(weight))[0] * scale * -_ZERO


def _turned(weight: torch.Tensor) -> torch.Tensor:
    """Inputs first. A single input has two equal strides, which oneDNN takes for those of another matrix."""
    return weight.t() if weight.shape[1] > 1 else weight.reshape(1, -1)


class _Product:
    """Of the hidden state with int8 weights, at every step in the same memory. Returns the state's scale, and
    leaves the integers in ``sums``.
    """

    def __init__(self, weight: torch.Tensor, rows: int) -> None:
        outputs, size = weight.shape
        self.weight = _turned(weight)
        self.levels, self.bytes = torch.empty(rows, size), torch.empty(rows, size, dtype=torch.uint8)
        self.whole, self.sums = torch.empty(rows, outputs, dtype=torch.int32), torch.empty(rows, outputs)

    def __call__(self, hidden: torch.Tensor) -> float:
        low, high = torch.aminmax(hidden)
        step: float = max(-low.item(), high.item(), _TINY) / (_ZERO - 1)
        torch.add(_MIDDLE, hidden, alpha=1 / step, out=self.levels)
        torch._int_mm(self.bytes.copy_(self.levels), self.weight, out=self.whole)
        self.sums.copy_(self.whole)
        return step
