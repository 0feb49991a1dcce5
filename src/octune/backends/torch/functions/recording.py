"""What a model does with its own weights, noted while it runs one batch.

    recorder = Recorder(model)
    with recorder.open():
        model(x)
    recorder.stored             # every tensor of the model, with what was done with it

Every function that PyTorch computes from Python passes by the recorder, and every kernel, whoever calls it. A
tensor or a view of one is known by its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from octune.backends.torch.functions.calls import Call, in_parts, is_product, read_call
from octune.backends.torch.functions.layout import Layout, writes
from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import kind_of

__all__ = ["Place", "Recorder", "Stored"]

Place = tuple[str, str]  # a module's path, and its tensor's name
# They hand the numbers to Python, which may do anything with them.
_READS = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__contains__"}


@dataclass
class Stored:
    """A tensor of the model, the places that have it, and what was done with it."""

    tensor: torch.Tensor
    places: list[Place] = field(default_factory=list)
    uses: list[tuple[Call, Layout, bool]] = field(default_factory=list)  # and whether by its own module
    others: list[str] = field(default_factory=list)  # functions that do something else
    computed: list[str] = field(default_factory=list)  # kinds of products whose weight was made of it
    products: list[str] = field(default_factory=list)  # functions that multiply by it in another way
    in_kernels: bool = False  # whether a kernel has multiplied by it, whoever called it

    is_input: bool = False  # whether it is what another weight is multiplied by, as a table of places may be

    @property
    def multiplies(self) -> bool:
        """Whether anything was multiplied by it, or by what was made of it."""
        return bool(self.uses or self.computed or self.products or (self.in_kernels and not self.is_input))


class Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules = dict(model.named_modules())
        self.running: list[str] = []
        self.stored: dict[int, Stored] = {}
        # what was made of weights alone, by identity, and kept so that it stays one's
        self.derived: dict[int, tuple[torch.Tensor, Stored]] = {}
        # modules whose calls are known to be ops without looking into them
        self.known = {
            path for path, module in self.modules.items() if (kind := kind_of(module)) and not kind.obstacle
        }
        for path, module in self.modules.items():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None or (address := _address(tensor)) is None:
                    continue
                known = self.stored.setdefault(address, Stored(tensor))
                known.places.append((path, name))
                if known.tensor is not tensor:
                    known.others.append("another tensor in the same memory")

    @contextmanager
    def open(self) -> Iterator[None]:
        """While this is open, everything is noted."""
        # Not in inference mode: there, compound operators arrive at the kernels as one.
        with hooks(self._watch()), torch.no_grad(), _Kernels(self), self:
            yield

    def _watch(self) -> Iterator[Any]:
        for path, module in self.modules.items():
            yield module.register_forward_pre_hook(partial(self._begins, path))
            yield module.register_forward_hook(self._ended, always_call=True)

    def _begins(self, path: str, *_: Any) -> None:
        self.running.append(path)

    def _ended(self, *_: Any) -> None:
        self.running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = in_parts(func, args, kwargs, lambda value: self.of(value) is not None)
        if parts is not None:
            with self:
                return parts()
        result = func(*args, **kwargs)
        self._note(func, args, kwargs, result)
        return result

    def of(self, value: Any) -> Stored | None:
        """The model's tensor that a value is, or is a view of."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return None
        address = _address(value)
        return None if address is None else self.stored.get(address)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        involved = [value for value in given if self.of(value) is not None or id(value) in self.derived]
        if not involved:
            return
        name = getattr(func, "__name__", str(func)).partition(".")[0].strip("_")
        results = tree_leaves(result)
        if not any(isinstance(value, torch.Tensor) for value in results):
            if getattr(func, "__name__", "") in _READS:
                self._other(involved, name)
            return
        call = read_call(func, args, kwargs, lambda value: any(value is one for one in involved))
        if call is None and is_product(func):
            self._multiplied(involved, name)
        if call is not None:
            self._called(call)
            involved = [v for v in involved if v is not call.weight and v is not call.bias]
            self._given(involved)
        elif not writes(func) and all(self.of(value) is not None for value in results):
            return  # a view
        elif func is F.scaled_dot_product_attention:
            self._given(involved)
        elif len(involved) == len(given):  # of weights alone, so it is a weight, too
            made_of = next(stored for value in involved if (stored := self._origin(value)) is not None)
            for value in results:
                if isinstance(value, torch.Tensor):
                    self.derived[id(value)] = (value, made_of)
        self._other(involved, name)

    def _origin(self, value: torch.Tensor) -> Stored | None:
        known = self.derived.get(id(value))
        return self.of(value) if known is None else known[1]

    def _other(self, values: list[torch.Tensor], name: str) -> None:
        for value in values:
            stored = self.of(value)
            if stored is not None and name not in stored.others:
                stored.others.append(name)

    def _given(self, values: list[torch.Tensor]) -> None:
        for value in values:
            if (stored := self.of(value)) is not None:
                stored.is_input = True

    def _multiplied(self, values: list[torch.Tensor], name: str) -> None:
        for value in values:
            stored = self.of(value)
            if stored is not None and value.ndim > 1:
                stored.products.append(name)

    def _called(self, call: Call) -> None:
        stored = self.of(call.weight)
        running = self.running[-1] if self.running else ""
        if stored is None:
            if kind_of(self.modules[running]) is None:  # else it is known by its module
                self.derived[id(call.weight)][1].computed.append(call.kind)
            return
        own = running in self.known and running in dict(stored.places)
        stored.uses.append((call, Layout.of(call.weight, stored.tensor), own))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its base is not typed
    """Sees the multiplications of compiled code, too, which do not pass by Python."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in flop_registry:
            for value in tree_leaves(args):
                if (stored := self.recorder.of(value)) is not None and value.ndim > 1:
                    stored.in_kernels = True
        return func(*args, **(kwargs or {}))


def _address(tensor: torch.Tensor) -> int | None:
    """Where its memory is; None if it has none of its own."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None
