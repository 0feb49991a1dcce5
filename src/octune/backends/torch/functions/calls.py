"""Calls that multiply by a weight, or look rows up in one, as what a module would compute.

    call = read_call(F.linear, (x, weight, bias), {}, stored=lambda value: value is weight)
    call.after(module(*call.inputs))        # where the module is one of call.kind with call.weight, reordered

``x @ weight``, ``F.linear(x, weight.t())`` and ``einsum("ibh,hnd->ibnd", x, weight)`` are linear layers: what
differs is in which order the weight has its dimensions, and the result its own.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from octune.backends.torch.functions.attention import attention
from octune.backends.torch.functions.cells import CELLS
from octune.backends.torch.functions.einsum import product_of, terms_of

__all__ = ["Call", "in_parts", "is_product", "make_module", "read_call"]

Stored = Callable[[Any], bool]  # whether a value is a weight of the model
aten: Any = torch.ops.aten
# Of a batch of matrices, each is a product of its own if they are few, and each has this many numbers.
MOST_PARTS, LARGE = 128, 1 << 14


def _as_is(output: torch.Tensor) -> torch.Tensor:
    return output


@dataclass(frozen=True, slots=True)
class Call:
    """What a module of the class ``kind`` computes from ``inputs``.

    Its weight is ``weight`` with its dimensions in the order ``order``; the first ``outputs`` of them are
    outputs of a linear layer, the others its inputs.
    """

    kind: str
    weight: torch.Tensor
    order: tuple[int, ...]
    inputs: tuple[Any, ...]
    outputs: int = 1
    bias: torch.Tensor | None = None
    options: tuple[tuple[str, Any], ...] = ()
    after: Callable[[torch.Tensor], torch.Tensor] = _as_is


def read_call(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], stored: Stored) -> Call | None:
    """The call of a function as that of a module; None if it is not one, or not of a stored weight."""
    reader = _READERS.get(func)
    if reader is None or kwargs.get("out") is not None:
        return None
    signature, read = reader
    try:
        bound = signature.bind(*args, **{name: value for name, value in kwargs.items() if name != "out"})
    except TypeError:
        return None
    bound.apply_defaults()
    return read(stored, *bound.args)


def in_parts(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], stored: Stored
) -> Callable[[], Any] | None:
    """A function with several products as one call for each: attention, a recurrent cell, a product with a
    batch of large matrices (of experts, say). None if it is not one.
    """
    if (steps := _IN_STEPS.get(func)) is not None:
        return partial(steps, *args, **kwargs)
    if kwargs.get("out") is not None:
        return None
    if func in _EINSUMS:
        return _einsum_in_parts(stored, *args)
    if func not in _BATCHED or len(args) != 2 or not all(getattr(value, "ndim", 0) == 3 for value in args):
        return None
    a, b = args
    if stored(a) == stored(b) or not _is_large(a if stored(a) else b, 0):
        return None
    return lambda: torch.stack([one @ other for one, other in zip(a.unbind(), b.unbind(), strict=True)])


def _is_large(weight: torch.Tensor, dim: int) -> bool:
    """Whether the matrices that a weight has in a dimension are worth a kernel each."""
    return weight.shape[dim] <= MOST_PARTS and weight.numel() >= LARGE * weight.shape[dim]


def is_product(func: Any) -> bool:
    """Whether a function multiplies tensors, in a way that is read here or not."""
    return func in _READERS or func in _OTHERS


def make_module(
    kind: str, weight: torch.Tensor, bias: torch.Tensor | None, options: Mapping[str, Any]
) -> nn.Module:
    """A module with these very tensors."""
    made: Any
    if kind == "Linear":
        made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    elif kind.startswith("Embedding"):
        made = getattr(nn, kind)(weight.shape[0], weight.shape[1], device="meta", **options)
    else:
        inner, outer = weight.shape[1] * options["groups"], weight.shape[0]
        if kind.startswith("ConvTranspose"):
            inner, outer = weight.shape[0], weight.shape[1] * options["groups"]
        kernel = tuple(weight.shape[2:])
        made = getattr(nn, kind)(inner, outer, kernel, bias=bias is not None, device="meta", **options)
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made.eval()  # type: ignore[no-any-return]


# -- linear layers -------------------------------------------------------------------------------------------


def _linear(stored: Stored, input: Any, weight: Any, bias: Any = None) -> Call | None:
    if not stored(weight) or weight.ndim != 2:
        return None
    return Call("Linear", weight, (0, 1), (input,), bias=bias)


def _matmul(stored: Stored, input: Any, other: Any) -> Call | None:
    if stored(input) == stored(other):
        return None
    if stored(other):
        return Call("Linear", other, (1, 0), (input,)) if other.ndim == 2 else None
    if input.ndim != 2:
        return None
    if other.ndim == 1:
        return Call("Linear", input, (0, 1), (other,))
    return Call("Linear", input, (0, 1), (other.transpose(-1, -2),), after=_transposed)


def _transposed(output: torch.Tensor) -> torch.Tensor:
    return output.transpose(-1, -2)


def _addmm(stored: Stored, input: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Call | None:
    if not stored(mat2) or stored(mat1) or input.ndim != 1 or (beta, alpha) != (1, 1):
        return None
    return Call("Linear", mat2, (1, 0), (mat1,), bias=input)


def _einsum(stored: Stored, equation: Any, *operands: Any) -> Call | None:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or stored(operands[0]) == stored(operands[1]):
        return None
    which = 0 if stored(operands[0]) else 1
    x, weight = operands[1 - which], operands[which]
    product = product_of(equation, which, x.ndim, weight.ndim)
    if product is None:
        return None
    sizes = [weight.shape[dim] for dim in product.order[: product.outputs]]
    source = x.permute(product.before)
    if product.contracted > 1:
        source = source.flatten(-product.contracted)
    after = partial(_laid_out, sizes=sizes, order=product.after)
    return Call("Linear", weight, product.order, (source,), product.outputs, after=after)


def _einsum_in_parts(stored: Stored, equation: Any, *operands: Any) -> Callable[[], torch.Tensor] | None:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or stored(operands[0]) == stored(operands[1]):
        return None
    terms = terms_of(equation.replace(" ", ""), (operands[0].ndim, operands[1].ndim))
    shared = [] if terms is None else [x for x in terms[2] if x in terms[0] and x in terms[1]]
    if terms is None or len(shared) != 1:
        return None
    which = 0 if stored(operands[0]) else 1
    if not _is_large(operands[which], terms[which].index(shared[0])):
        return None
    a, b = (x.unbind(term.index(shared[0])) for x, term in zip(operands, terms[:2], strict=True))
    rest = "{},{}->{}".format(*(term.replace(shared[0], "") for term in terms))
    place = terms[2].index(shared[0])
    return lambda: torch.stack([torch.einsum(rest, *pair) for pair in zip(a, b, strict=True)], dim=place)


def _laid_out(output: Any, sizes: list[int], order: tuple[int, ...]) -> torch.Tensor:
    laid: torch.Tensor = (output.unflatten(-1, sizes) if len(sizes) > 1 else output).permute(order)
    return laid


def _tensordot(stored: Stored, a: Any, b: Any, dims: Any = 2) -> Call | None:
    if isinstance(dims, torch.Tensor):
        return None
    first, second = (range(a.ndim - dims, a.ndim), range(dims)) if isinstance(dims, int) else dims
    left, right = list(string.ascii_lowercase[: a.ndim]), list(string.ascii_uppercase[: b.ndim])
    for one, other in zip(first, second, strict=True):
        right[other] = left[one]
    result = [letter for letter in (*left, *right) if (letter in left) != (letter in right)]
    return _einsum(stored, f"{''.join(left)},{''.join(right)}->{''.join(result)}", a, b)


# -- convolutions and tables ---------------------------------------------------------------------------------


def _whole(stored: Stored, kind: str, weight: Any, inputs: tuple[Any, ...], **given: Any) -> Call | None:
    if not stored(weight):
        return None
    bias = given.pop("bias", None)
    options = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in given.items())
    return Call(kind, weight, tuple(range(weight.ndim)), inputs, 1, bias, options)


_CONV = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_TRANSPOSED = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


def _conv(
    kind: str, names: Sequence[str], stored: Stored, input: Any, weight: Any, bias: Any, *options: Any
) -> Call | None:
    return _whole(stored, kind, weight, (input,), bias=bias, **dict(zip(names, options, strict=True)))


def _embedding(
    stored: Stored,
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call | None:
    return _whole(stored, "Embedding", weight, (input,)) if max_norm is None else None


def _rows(
    stored: Stored, weight: Any, indices: Any, padding_idx: int = -1, scale: Any = False, sparse: Any = False
) -> Call | None:
    return _whole(stored, "Embedding", weight, (indices,))


def _embedding_bag(
    stored: Stored,
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: Any = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Call | None:
    if max_norm is not None:
        return None
    inputs: tuple[Any, ...] = (input, offsets, per_sample_weights)
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return _whole(
        stored, "EmbeddingBag", weight, inputs,
        mode=mode, include_last_offset=include_last_offset, padding_idx=padding_idx,
    )  # fmt: skip


def _readers() -> dict[Any, tuple[inspect.Signature, Callable[..., Call | None]]]:
    functions: dict[Callable[..., Call | None], tuple[Any, ...]] = {
        _linear: (F.linear, aten.linear.default),
        _matmul: (
            torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__,
            aten.matmul.default, aten.mm.default,
        ),
        _addmm: (torch.addmm, torch.Tensor.addmm, aten.addmm.default),
        _einsum: (torch.einsum, aten.einsum.default),
        _tensordot: (torch.tensordot,),
        _embedding: (F.embedding,),
        _rows: (torch.embedding, aten.embedding.default),
        _embedding_bag: (F.embedding_bag,),
    }  # fmt: skip
    readers = {
        function: (_without_stored(inspect.signature(read)), read)
        for read, names in functions.items()
        for function in names
    }
    for name, kind, options in (("conv", "Conv", _CONV), ("conv_transpose", "ConvTranspose", _TRANSPOSED)):
        for rank in (1, 2, 3):
            full = f"{name}{rank}d"
            overloads = getattr(aten, full)
            kernel = overloads.input if "input" in overloads.overloads() else overloads.default
            reader = (_signature(options), partial(_conv, f"{kind}{rank}d", tuple(options)))
            readers |= dict.fromkeys((getattr(F, full), getattr(torch, full), kernel), reader)
    return readers


def _signature(options: Mapping[str, int]) -> inspect.Signature:
    """That of a convolution with these options behind its bias, in this order."""
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [inspect.Parameter(name, both) for name in ("input", "weight")]
    defaults = {"bias": None, **options}
    named += [inspect.Parameter(name, both, default=default) for name, default in defaults.items()]
    return inspect.Signature(named)


def _without_stored(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "stored"])


_READERS = _readers()
_IN_STEPS: dict[Any, Callable[..., Any]] = {F.multi_head_attention_forward: attention, **CELLS}
_EINSUMS = {torch.einsum, aten.einsum.default}
_BATCHED = {
    torch.bmm, torch.Tensor.bmm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, aten.bmm.default,
    aten.matmul.default,
}  # fmt: skip
_OTHERS = {
    torch.bmm, torch.baddbmm, torch.Tensor.bmm, torch.Tensor.baddbmm, torch.chain_matmul, torch._grouped_mm,
    F.bilinear, F.grouped_mm,
    aten.bmm.default, aten.baddbmm.default,
}  # fmt: skip
