"""What one fp32 batch computes: multiply-adds by op, and the types of everything else that ran.

    work = counted(model, found, inputs)
    work = computed(int8_model, inputs)         # of a finished model: the ops are "int8" and "bf16"

Every operator that PyTorch dispatches is looked at while it runs, wherever it was called from: a module, a
function, a scripted part. It belongs to the op in whose forward it runs, else to the op whose weight it
reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from octune.backends.batches import Inputs
from octune.backends.torch.discover import Found
from octune.backends.torch.hooks import hooks
from octune.coverage import Work

__all__ = ["computed", "counted"]

# What users call operators whose names are those of kernels.
TITLES = {
    "addmm": "matmul",
    "mm": "matmul",
    "bmm": "matmul",  # also what a matmul of three axes becomes
    "baddbmm": "matmul",
    "mv": "matmul",
    "addmv": "matmul",
    "mkldnn_rnn_layer": "lstm",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
}
# Operators that only move, make or look up numbers.
MOVES = {
    "arange", "as_strided", "bernoulli", "bitwise_and", "bitwise_not", "bitwise_or", "cat", "clone",
    "constant_pad_nd", "contiguous", "copy", "cumsum", "embedding", "empty", "empty_like",
    "empty_strided", "eq", "expand", "fill", "flip", "full", "full_like", "gather", "ge", "gt", "index",
    "index_put", "index_select", "isin", "le", "lift_fresh", "local_scalar_dense", "logical_and",
    "logical_not", "logical_or", "lt", "masked_fill", "ne", "new_empty", "new_full", "new_ones",
    "new_zeros", "nonzero", "ones", "ones_like", "pad", "rand", "randn", "repeat", "repeat_interleave",
    "reshape_alias", "roll", "scalar_tensor", "scatter", "select_scatter", "slice_scatter", "split",
    "split_with_sizes", "stack", "to_copy", "tril", "triu", "unfold", "unsafe_split", "unsafe_view",
    "unsafe_index", "where", "zeros", "zeros_like", "zero", "eye", "unique2", "sort", "topk", "argmax",
    "argmin", "max", "min", "any", "all", "item", "bucketize",
}  # fmt: skip


def _recurrent(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Multiply-adds of a layer over all time steps."""
    return prod(x.shape[:-1]) * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _lstm_layer(x: torch.Tensor, *weights: Any, **_: Any) -> int:
    return _recurrent(x, [weight for weight in weights[:2] if isinstance(weight, torch.Tensor)])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return prod(query.shape[:-1]) * int(key.shape[-2]) * (query.shape[-1] + value.shape[-1])


def _vector(matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    return matrix.numel()


def _vector_added(start: torch.Tensor, matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    return matrix.numel()


aten = torch.ops.aten
# PyTorch's own table lacks what only CPUs have.
FORMULAS: Mapping[Any, Callable[..., int]] = {
    aten.mkldnn_rnn_layer: _lstm_layer,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten.mv: _vector,
    aten.dot: _vector,
    aten.addmv: _vector_added,
}


def counted(
    model: nn.Module, found: Iterable[Found], inputs: Inputs, floats: Mapping[str, torch.Tensor]
) -> Work:
    """Run one batch, and count. ``floats`` are the weights of ops that are not modules, by the ops' names."""
    listed = list(found)
    counter = _Counter({item.op.name: item.module for item in listed}, floats)
    # Without gradients, but not in inference mode: there, compound operators arrive as one.
    with _plain_attention(), hooks(counter.watch()), torch.no_grad(), counter:
        inputs(model)
    names = {*(item.op.name for item in listed), *floats}
    return Work({n: c for n, c in counter.ops.items() if n in names}, counter.unseen, {}, counter.others)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without the fused forward of a whole encoder layer, in which nothing can be told apart."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def computed(model: nn.Module, inputs: Inputs) -> Work:
    """Run one batch through a model of any maker, and count by what each operator computes in."""
    counter = _ByPrecision()
    with _plain_attention(), torch.no_grad(), counter:
        inputs(model)
    return Work(dict(counter.ops), counter.unseen, counter.uncounted, counter.others)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its base is not typed
    def __init__(self, modules: Mapping[str, nn.Module], floats: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules = modules
        self._inside: list[str] = []
        self._owners: dict[tuple[int, Any], str] = {
            (parameter.untyped_storage().data_ptr(), parameter.storage_offset()): name
            for name, parameter in (
                *floats.items(),
                *((name, p) for name, m in reversed(list(modules.items())) for p in m.parameters()),
            )
        }
        self.ops: Counter[str] = Counter()
        self.unseen: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def watch(self) -> Iterator[Any]:
        """Hooks that say in which op the model is."""
        for name, module in self._modules.items():

            def enter(module: nn.Module, args: Any, name: str = name) -> None:
                self._inside.append(name)

            def leave(module: nn.Module, args: Any, output: Any) -> None:
                self._inside.pop()

            yield module.register_forward_pre_hook(enter)
            yield module.register_forward_hook(leave, always_call=True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        title = packet.__name__.strip("_")
        products = self._products(packet, args, kwargs, out)
        owner = self._owner(packet, args)
        if products is not None:
            if owner is not None:
                self.ops[owner] += products
            else:
                self.unseen[TITLES.get(title, title)] += products
        elif not self._inside and not func.is_view and title not in MOVES and _floats(out):
            self.others[TITLES.get(title, title)] += 1
        return out

    def _owner(self, packet: Any, args: tuple[Any, ...]) -> str | None:
        return self._inside[0] if self._inside else self._reads(args)

    @staticmethod
    def _products(packet: Any, args: Any, kwargs: Any, out: Any) -> int | None:
        if packet in FORMULAS:
            return FORMULAS[packet](*args, **kwargs)
        if packet in flop_registry:
            return int(flop_registry[packet](*args, **kwargs, out_val=out)) // 2
        return None

    def _reads(self, args: Any) -> str | None:
        for leaf in tree_leaves(args):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                owner = self._owners.get((leaf.untyped_storage().data_ptr(), leaf.storage_offset()))
                if owner is not None:
                    return owner
        return None


# -- finished models -----------------------------------------------------------------------------------------


def _dense_int8(x: torch.Tensor, *_: Any, out: Any) -> int:
    return int(out.numel() * x.shape[-1])


def _conv_int8(x: torch.Tensor, scale: Any, zero: Any, weight: torch.Tensor, *_: Any, out: Any) -> int:
    return int(out.numel() // out.shape[1] * weight.numel())


def _packed_conv(x: torch.Tensor, packed: Any, *_: Any, out: Any) -> int:
    return int(out.numel() // out.shape[1] * packed.unpack()[0].numel())


def _packed_recurrent(x: torch.Tensor, state: Any, packed: Any, *rest: Any, out: Any) -> int:
    """All layers of PyTorch's dynamic kernels; the sizes of packed weights follow from those of states."""
    hidden = (state[0] if isinstance(state, list | tuple) else state).shape
    sums = 4 if isinstance(state, list | tuple) else 3
    both = out[0].shape[-1] // hidden[-1]  # directions
    widths = [int(x.shape[-1]), *[both * hidden[-1]] * (len(packed) // both - 1)]
    steps = int(out[0].shape[:-1].numel())
    return sum(steps * both * sums * hidden[-1] * (width + hidden[-1]) for width in widths)


def _own_recurrent(x: torch.Tensor, state: Any, weights: Sequence[torch.Tensor], *_: Any, out: Any) -> int:
    return _recurrent(x, weights)


# Of the operators that multiply in int8, by their names: not all of them are in every PyTorch.
INT8_FORMULAS: Mapping[str, Callable[..., int]] = {
    "aten::_int_mm": _dense_int8,
    "onednn::qlinear_pointwise": _dense_int8,
    "onednn::qconv_pointwise": _conv_int8,
    "onednn::qconv1d_pointwise": _conv_int8,
    "onednn::qconv2d_pointwise": _conv_int8,
    "onednn::qconv3d_pointwise": _conv_int8,
    "quantized::linear": _dense_int8,
    "quantized::linear_relu": _dense_int8,
    "quantized::linear_dynamic": _dense_int8,
    "quantized::linear_relu_dynamic": _dense_int8,
    "quantized::conv1d": _packed_conv,
    "quantized::conv2d": _packed_conv,
    "quantized::conv2d_relu": _packed_conv,
    "quantized::conv3d": _packed_conv,
    "aten::quantized_lstm": _packed_recurrent,
    "aten::quantized_gru": _packed_recurrent,
    "octune::recurrent": _own_recurrent,
}
INT8_SPACES = ("octune::", "onednn::", "quantized::")
MULTIPLY = ("linear", "conv", "matmul", "recurrent", "gru", "lstm")


class _ByPrecision(_Counter):  # type: ignore[no-untyped-call]
    """Counts by what operators compute in, whoever called them."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.uncounted: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        formula = INT8_FORMULAS.get(name)
        if formula is None and not name.startswith(INT8_SPACES):
            return super().__torch_dispatch__(func, types, args, kwargs)
        out = func(*args, **(kwargs or {}))
        if formula is not None:
            self.ops["int8"] += formula(*args, out=out)
        elif any(word in name for word in MULTIPLY) and "pack" not in name:
            self.uncounted[name] += 1
        return out

    def _owner(self, packet: Any, args: tuple[Any, ...]) -> str | None:
        half = any(getattr(leaf, "dtype", None) == torch.bfloat16 for leaf in tree_leaves(args))
        return "bf16" if half else None


def _floats(out: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in tree_leaves(out))
