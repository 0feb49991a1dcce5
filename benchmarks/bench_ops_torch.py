"""The cases of benchmarks/ops.py on PyTorch: the two products of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from bench_ops_case import Case
from torch.nn import functional

HEADS, WIDTH = 12, 64
Tensor = Any


def cases(threads: int) -> Iterator[Case]:
    """All of them."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    for length in (128, 384, 512):
        for batch in (1, 8):
            title = f"{HEADS} heads of {WIDTH}, {length} tokens, batch {batch}"
            yield Case("attention", title, partial(_attention, batch, length))


def _attention(batch: int, length: int) -> dict[str, Callable[[], Tensor]]:
    """Everything from float queries, keys and values to a float result. In int8 the softmax is in float."""
    q, k, v = (torch.randn(batch, HEADS, length, WIDTH) for _ in range(3))

    def called(form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with torch.inference_mode():
                return form(q, k, v)

        return call

    return {
        "fp32": called(functional.scaled_dot_product_attention),
        "bf16": called(_bf16),
        "int8 by head, _int_mm": called(_int_mm),
        "int8 by head, qlinear": called(_qlinear),
    }


def _bf16(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).float()


def _around_zero(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values and their step."""
    step = x.abs().amax() / 127
    return torch.round(x / step).to(torch.int8), step


def _int_mm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``torch._int_mm`` multiplies two int8 matrices, and is called for every head."""
    (a, x), (b, y), (c, z) = (_around_zero(one.flatten(0, 1)) for one in (q, k, v))
    mix = torch.empty(q.shape).flatten(0, 1)
    for head in range(len(a)):
        scores = torch._int_mm(a[head], b[head].t()) * (x * y / WIDTH**0.5)
        shares = torch.round(scores.softmax(-1) * 127).to(torch.int8)
        mix[head] = torch._int_mm(shares, c[head]) * (z / 127)
    return mix.view(q.shape)


def _qlinear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The kernel of int8 linear layers, which packs its second operand at every call."""
    low, high = torch.aminmax(q)
    step = float(high - low) / 255
    zero = round(-float(low) / step)
    a = torch.clamp(torch.round(q.flatten(0, 1) / step) + zero, 0, 255).to(torch.uint8)
    (b, y), (c, z) = (_around_zero(one.flatten(0, 1)) for one in (k, v))
    scores_of = (y / WIDTH**0.5).expand(b.shape[1]).contiguous()
    mix_of = z.expand(WIDTH).contiguous()
    mix = torch.empty(q.shape).flatten(0, 1)
    for head in range(len(a)):
        scores = _product(a[head], step, zero, b[head], scores_of)
        shares = torch.round(scores.softmax(-1) * 255).to(torch.uint8)
        mix[head] = _product(shares, 1 / 255, 0, c[head].t().contiguous(), mix_of)
    return mix.view(q.shape)


def _product(x: Tensor, step: float, zero: int, weight: Tensor, scales: Tensor) -> Tensor:
    onednn: Any = torch.ops.onednn
    packed = onednn.qlinear_prepack(weight, list(x.shape))
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    return onednn.qlinear_pointwise.default(
        x, step, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
