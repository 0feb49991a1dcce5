"""Stand-ins for a module's own tensors, which send calls that multiply by them to a child of that module.

    owner.__dict__["weight"] = StandIn(owner, "weight", sites)
    F.linear(x, owner.weight)               # is now owner.get_submodule(site.child)(x)
    owner.weight.t(), owner.weight[:8]      # stand-ins again, for those parts
    owner.weight + 1                        # anything else: computed with the child's weight, as floats

The module's own code runs as it is, with its own control flow, and does not know. What the child is decides
how the call is computed: a float module, or an int8 layer. Under ``torch.export`` it is traced as any child.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import get_default_nowrap_functions
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from octune.backends.torch.functions.calls import Call, in_parts, make_module, read_call
from octune.backends.torch.functions.layout import Layout, same_memory, writes
from octune.errors import UnsupportedError

__all__ = ["Site", "StandIn", "stored_in"]

Tensor: Any = torch.Tensor  # Any: what answers for an attribute of a tensor is a function to Python alone
# What is answered by sizes and types alone.
_PLAIN = {
    *get_default_nowrap_functions(),
    Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.ndim.__get__,
    Tensor.layout.__get__, Tensor.requires_grad.__get__, Tensor.is_cuda.__get__, Tensor.is_nested.__get__,
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.storage_offset, Tensor.is_floating_point,
    Tensor.__len__, Tensor.is_contiguous,
}  # fmt: skip
_PLACES = (int, slice, tuple, type(None), type(...))  # what says which part of a tensor is meant
_ALIKE = (Tensor.to, Tensor.type_as)


@dataclass(frozen=True)
class Site:
    """One way in which a tensor is used: which child of its owner computes it, and what that one's weight is.

    The weight is ``layout`` of the tensor, as a matrix with ``outputs`` dimensions that are outputs where it
    is a linear layer's. ``bias`` names the owner's tensor that is added, if it has always been the same.
    """

    child: str
    kind: str
    layout: Layout
    outputs: int = 1
    bias: tuple[str, Layout] | None = None
    options: tuple[tuple[str, Any], ...] = field(default=())

    @property
    def key(self) -> tuple[Any, ...]:
        """What a call must agree on."""
        return self.kind, self.layout, self.outputs, self.options

    def matrix(self, flat: torch.Tensor) -> torch.Tensor:
        """The child's weight, out of the numbers that are stored; without a copy where it can be."""
        view = self.layout.of_flat(flat)
        if self.kind != "Linear":
            return view
        size = self.layout.size
        return view.reshape(math.prod(size[: self.outputs]), math.prod(size[self.outputs :]))

    def module(self, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
        """A float module for it."""
        return make_module(self.kind, weight, bias, dict(self.options))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        bias = None if self.bias is None else [self.bias[0], asdict(self.bias[1])]
        return {**asdict(self), "bias": bias, "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Site:
        """The inverse of :meth:`to_json`."""
        bias = None if data["bias"] is None else (data["bias"][0], _layout(data["bias"][1]))
        options = tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in data["options"].items()
        )
        return cls(data["child"], data["kind"], _layout(data["layout"]), data["outputs"], bias, options)


def _layout(data: Mapping[str, Any]) -> Layout:
    return Layout(tuple(data["size"]), tuple(data["stride"]), data["offset"])


def stored_in(module: nn.Module, name: str) -> torch.Tensor | None:
    """A module's own parameter or buffer of that name, stand-in or not; None if it has none."""
    stored: torch.Tensor | None = module._parameters.get(name)
    return module._buffers.get(name) if stored is None else stored


class StandIn(torch.Tensor):
    """A tensor without numbers of its own; see the module's docstring. One without sites is a bias."""

    owner: nn.Module
    tensor: str
    sites: dict[tuple[Any, ...], Site]
    count: int
    layout_: Layout
    parts: dict[tuple[Any, str], Any]  # views of it that were asked for

    @staticmethod
    def __new__(
        cls, owner: nn.Module, name: str, sites: Mapping[tuple[Any, ...], Site], count: int, layout: Layout
    ) -> StandIn:
        made: StandIn = Tensor._make_wrapper_subclass(
            cls,
            layout.size,
            strides=layout.stride,
            storage_offset=layout.offset,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        made.owner, made.tensor, made.sites = owner, name, dict(sites)
        made.count, made.layout_, made.parts = count, layout, {}
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _PLAIN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        call = read_call(func, args, kwargs, _is_weight)
        if call is not None and (done := _routed(call)) is not None:
            return done
        if (parts := in_parts(func, args, kwargs, _is_weight)) is not None:
            return parts()
        if call is None and (part := _known_part(func, args, kwargs)) is not None:
            return part
        args, kwargs = tree_map_only(StandIn, StandIn.floats, (args, dict(kwargs)))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Code that no Python sees on its way to a kernel.
        args, kwargs = tree_map_only(StandIn, StandIn.floats, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

    def floats(self) -> torch.Tensor:
        """The numbers it stands for."""
        stored = stored_in(self.owner, self.tensor)
        flat = self._gathered() if stored is None else stored.reshape(-1)
        return self.layout_.of_flat(flat)

    def _gathered(self) -> torch.Tensor:
        flat = torch.empty(self.count)
        for site in self.sites.values():
            child: Any = self.owner._modules[site.child]
            site.layout.of_flat(flat).copy_(child.weight.float().reshape(site.layout.size))
        return flat

    def part(self, layout: Layout) -> StandIn:
        """A stand-in for a view of it."""
        return StandIn(self.owner, self.tensor, self.sites, self.count, layout)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        owner = copy.deepcopy(self.owner, memo)
        made = memo[id(self)] = StandIn(owner, self.tensor, self.sites, self.count, self.layout_)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return StandIn, (self.owner, self.tensor, self.sites, self.count, self.layout_)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StandIn({self.tensor}, size={self.layout_.size})"


def _is_weight(value: Any) -> bool:
    return isinstance(value, StandIn) and bool(value.sites)


def _routed(call: Call) -> Any:
    """The result of the child that computes this call; None if there is none."""
    weight = call.weight
    if not isinstance(weight, StandIn) or any(isinstance(value, StandIn) for value in call.inputs):
        return None
    key = (call.kind, weight.layout_.permuted(call.order), call.outputs, call.options)
    site = weight.sites.get(key)
    if site is None or (site.bias is not None and not _is_bias(call.bias, site.bias, weight.owner)):
        return None
    child: Any = weight.owner._modules[site.child]
    output: torch.Tensor = child(*call.inputs)
    if site.bias is None and call.bias is not None:
        bias = call.bias.floats() if isinstance(call.bias, StandIn) else call.bias
        dims = weight.ndim - 2 if call.kind.startswith("Conv") else 0
        output = output + bias.reshape(-1, *(1,) * dims)
    return call.after(output)


def _is_bias(given: Any, wanted: tuple[str, Layout], owner: nn.Module) -> bool:
    return isinstance(given, StandIn) and given.owner is owner and (given.tensor, given.layout_) == wanted


def _known_part(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The same as :func:`_part`, which takes as long as a small layer, so it is done once."""
    first: Any = args[0] if args else None
    if kwargs or type(first) is not StandIn or not all(type(value) in _PLACES for value in args[1:]):
        return _part(func, args, kwargs)
    key = func, repr(args[1:])
    if key not in first.parts:
        first.parts[key] = _part(func, args, kwargs)
    return first.parts[key]


def _part(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a function returns that only looks at a part of a stand-in, or turns it; None for any other."""
    if func is Tensor.__getitem__ and _is_number(args[1]):  # of an expert, say
        args = (args[0], int(args[1]))
    given = tree_leaves((args, kwargs))
    if any(isinstance(value, torch.SymInt) for value in given):
        # An eager model finds the layer of this part when it runs; a trace would be left with floats.
        raise UnsupportedError("which part of a weight is used depends on the data")
    found = [value for value in given if isinstance(value, torch.Tensor)]
    alike = func in _ALIKE and not isinstance(found[-1], StandIn)  # only the type of the second matters
    if len(found) != 1 + alike or writes(func):
        return None
    whole: Any = found[0]
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # whoever traces or counts
        flat = torch.empty(whole.count, device="meta")
        shadow = whole.layout_.of_flat(flat)
        args, kwargs = tree_map_only(
            torch.Tensor,
            lambda value: shadow if value is whole else torch.empty((), dtype=value.dtype, device="meta"),
            (args, dict(kwargs)),
        )
        try:
            made = func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError):
            return None
        views = tree_leaves(made)
        if not views or not all(same_memory(view, flat) for view in views):
            return None
        return tree_map_only(torch.Tensor, lambda view: whole.part(Layout.of(view)), made)


def _is_number(index: Any) -> bool:
    """Whether an index is a whole number in a tensor, which means the number and not a table of rows."""
    return isinstance(index, torch.Tensor) and index.ndim == 0 and index.dtype in (torch.int32, torch.int64)
