"""Attention as PyTorch's own function computes it, in single steps: what is multiplied by a weight is a call
of ``F.linear`` that can be seen, and replaced.

    output, weights = attention(query, key, value, ...)     # takes what F.multi_head_attention_forward takes

Sequences come first in what is given and returned, as there; in between the batch does, which is how the
caller has them in memory more often than not, and how padding is known.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules import transformer

__all__ = ["attention", "without_hints"]

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
# The function itself, without its first question: whether somebody else wants to compute it.
_AS_WRITTEN = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    "multi_head_attention_forward",
    F.multi_head_attention_forward.__defaults__,
)
_unflatten: Any = torch.unflatten  # Any: it is not typed
_RARE = ("bias_k", "bias_v", "static_k", "static_v")


def attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``F.multi_head_attention_forward``, with calls of ``F.linear`` for all that has weights."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    rare = given["add_zero_attn"] or given["training"] or any(given[name] is not None for name in _RARE)
    if rare or given["query"].dim() != 3:
        made: tuple[torch.Tensor, torch.Tensor | None] = _AS_WRITTEN(*args, **kwargs)
        return made
    heads: int = given["num_heads"]
    batch, length = given["query"].shape[1], given["query"].shape[0]
    q, k, v = (_unflatten(made, -1, (heads, -1)).transpose(1, 2) for made in _projected(given))
    mask, causal = _mask(given, batch, q.shape[1])
    weights = None
    if given["need_weights"]:
        scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-1, -2)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    if weights is None or torch.compiler.is_compiling():  # weights that nobody reads are then not computed
        mixed = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal)
    else:
        mixed = weights @ v
    joined = mixed.transpose(1, 2).reshape(batch, length, -1)
    output = F.linear(joined, given["out_proj_weight"], given["out_proj_bias"]).transpose(0, 1)
    if weights is not None and given["average_attn_weights"]:
        weights = weights.mean(dim=1)
    return output, weights


@contextmanager
def without_hints() -> Iterator[None]:
    """While this is open, encoders and decoders do not ask whether their mask is a causal one: a trace cannot
    follow a question to numbers. Asking only serves to leave the mask out.
    """
    module: Any = transformer
    asked = module._detect_is_causal_mask
    module._detect_is_causal_mask = lambda mask, is_causal, size: bool(is_causal)
    try:
        yield
    finally:
        module._detect_is_causal_mask = asked


def _projected(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    query, key, value = (given[name].transpose(0, 1) for name in ("query", "key", "value"))
    weight, bias = given["in_proj_weight"], given["in_proj_bias"]
    if given["use_separate_proj_weight"]:
        biases = (None, None, None) if bias is None else bias.chunk(3)
        weights = [given[name] for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight")]
        return tuple(map(F.linear, (query, key, value), weights, biases))
    if given["key"] is not given["value"]:
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return tuple(map(F.linear, (query, key, value), weight.chunk(3), biases))
    if given["query"] is given["key"]:
        return F.linear(query, weight, bias).chunk(3, dim=-1)
    width = query.shape[-1]
    first, others = weight.split([width, 2 * width])
    one, two = (None, None) if bias is None else bias.split([width, 2 * width])
    return (F.linear(query, first, one), *F.linear(key, others, two).chunk(2, dim=-1))


def _mask(given: dict[str, Any], batch: int, heads: int) -> tuple[torch.Tensor | None, bool]:
    """What is added to the scores, as (batch, heads, queries, keys), or that it is causal, no more."""
    padding, mask = (
        F._canonical_mask(given[name], name, None, "", given["query"].dtype, check_other=False)
        for name in ("key_padding_mask", "attn_mask")
    )
    if given["is_causal"] and mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    if given["is_causal"] and padding is None and not given["need_weights"]:
        return None, True
    if mask is not None:
        mask = mask[None, None] if mask.dim() == 2 else _unflatten(mask, 0, (batch, heads))
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask, False
