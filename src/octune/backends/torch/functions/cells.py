"""Recurrent cells in single steps: ``nn.LSTMCell`` and the like call one function, whose two products are
calls of ``F.linear`` here, which can be seen, and replaced.

    hidden, cell = CELLS[torch.lstm_cell](x, (hidden, cell), w_ih, w_hh, b_ih, b_hh)    # as that function
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["CELLS"]

Maybe = torch.Tensor | None


def _lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Maybe = None,
    b_hh: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, cell = hx
    i, f, g, o = (F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)).chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Maybe = None,
    b_hh: Maybe = None,
) -> torch.Tensor:
    r, z, n = F.linear(input, w_ih, b_ih).chunk(3, 1)
    own_r, own_z, own_n = F.linear(hx, w_hh, b_hh).chunk(3, 1)
    new = (n + (r + own_r).sigmoid() * own_n).tanh()
    return new + (z + own_z).sigmoid() * (hx - new)


def _plain(
    activation: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Maybe = None,
    b_hh: Maybe = None,
) -> torch.Tensor:
    return activation(F.linear(input, w_ih, b_ih) + F.linear(hx, w_hh, b_hh))


CELLS: Mapping[Any, Callable[..., Any]] = {
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: partial(_plain, torch.tanh),
    torch.rnn_relu_cell: partial(_plain, torch.relu),
}
