"""Which functions a model calls with its own weights, found by running it on one batch.

    found = find(model, call)
    found.sites         # {(owner, name of the tensor): [Site, ...]}
    found.floats        # what multiplies by a weight and has to stay float, with the reason

Every function that PyTorch computes from Python passes by the recorder. A tensor that is used in no other way
than as the weight of such calls can be taken out of its module (see ``weights``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from octune.backends.batches import Inputs
from octune.backends.torch.functions.attention import attention
from octune.backends.torch.functions.calls import Call, is_product, read_call
from octune.backends.torch.functions.layout import Layout, writes
from octune.backends.torch.functions.weights import Site
from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import kind_of

__all__ = ["Float", "Functions", "Place", "find"]

Place = tuple[str, str]  # a module's path, and its tensor's name
# They hand the numbers to Python, which may do anything with them.
_READS = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__contains__"}


@dataclass(frozen=True)
class Float:
    """A product that stays float: where it is, and why."""

    place: Place  # of the weight
    kind: str
    weight: torch.Tensor
    reason: str

    @property
    def name(self) -> str:
        """As the user knows it."""
        return ".".join(filter(None, self.place))


@dataclass(frozen=True)
class Functions:
    """What was found."""

    sites: Mapping[Place, list[Site]]
    floats: list[Float]


@dataclass
class _Stored:
    """A tensor of the model, the places that have it, and what was done with it."""

    tensor: torch.Tensor
    places: list[Place] = field(default_factory=list)
    uses: list[tuple[Call, Layout, bool]] = field(default_factory=list)  # and whether by its own module
    others: list[str] = field(default_factory=list)  # functions that do something else
    computed: list[str] = field(default_factory=list)  # kinds of products whose weight was made of it
    products: list[str] = field(default_factory=list)  # functions that multiply by it in another way


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules = dict(model.named_modules())
        self.running: list[str] = []
        self.stored: dict[int, _Stored] = {}
        self.derived: dict[
            int, tuple[torch.Tensor, _Stored]
        ] = {}  # by identity, and kept so that it stays one's
        # modules whose calls are known to be ops without looking into them
        self.known = {
            path for path, module in self.modules.items() if (kind := kind_of(module)) and not kind.obstacle
        }
        for path, module in self.modules.items():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None or (address := _address(tensor)) is None:
                    continue
                known = self.stored.setdefault(address, _Stored(tensor))
                known.places.append((path, name))
                if known.tensor is not tensor:
                    known.others.append("another tensor in the same memory")

    def watch(self) -> Iterator[Any]:
        """Hooks that say which module is running."""
        for path, module in self.modules.items():
            yield module.register_forward_pre_hook(partial(self._begins, path))
            yield module.register_forward_hook(self._ended, always_call=True)

    def _begins(self, path: str, *_: Any) -> None:
        self.running.append(path)

    def _ended(self, *_: Any) -> None:
        self.running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs)
        result = func(*args, **kwargs)
        self._note(func, args, kwargs, result)
        return result

    def of(self, value: Any) -> _Stored | None:
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
        elif not writes(func) and all(self.of(value) is not None for value in results):
            return  # a view
        else:
            made_of = [stored for value in involved if (stored := self._origin(value)) is not None]
            if len(involved) == len(given):  # of weights alone, so it is a weight, too
                for value in results:
                    if isinstance(value, torch.Tensor):
                        self.derived[id(value)] = (value, made_of[0])
        self._other(involved, name)

    def _origin(self, value: torch.Tensor) -> _Stored | None:
        known = self.derived.get(id(value))
        return self.of(value) if known is None else known[1]

    def _other(self, values: list[torch.Tensor], name: str) -> None:
        for value in values:
            stored = self.of(value)
            if stored is not None and name not in stored.others:
                stored.others.append(name)

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


def _address(tensor: torch.Tensor) -> int | None:
    """Where its memory is; None if it has none of its own."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


def find(model: nn.Module, call: Inputs) -> Functions:
    """Run the model on one batch, and sort out what it did with its weights."""
    recorder = _Recorder(model)
    with hooks(recorder.watch()), torch.inference_mode(), recorder:
        call(model)
    sites: dict[Place, list[Site]] = {}
    floats: list[Float] = []
    for stored in recorder.stored.values():
        if all(own for _, _, own in stored.uses) and not stored.computed and not stored.products:
            continue
        owner, name = stored.places[0]
        reason = _obstacle(stored)
        if not reason:
            made = _sites(stored, recorder)
            reason = _refused(made, stored)
        if reason:
            if kind_of(recorder.modules[owner]) is None:  # else it is known by its module
                kind = next(iter([call.kind for call, *_ in stored.uses] + stored.computed + stored.products))
                floats.append(Float((owner, name), kind.lower(), stored.tensor, reason))
        else:
            sites[owner, name] = made
    return Functions(sites, floats)


def _obstacle(stored: _Stored) -> str:
    if stored.computed:
        return "its weight is computed at every call, not stored"
    if stored.products:
        return f"this {stored.products[0]} is not a product with one matrix, and has no int8 kernel"
    if stored.others:
        return f"its weight is also used by {', '.join(stored.others[:3])}"
    if len(stored.places) > 1:
        others = ", ".join(f"{owner}.{name}" for owner, name in stored.places[1:])
        return f"its weight is tied to {others}"
    if stored.tensor.dtype is not torch.float32:
        return f"its weight is {str(stored.tensor.dtype).removeprefix('torch.')}"
    if not stored.tensor.is_contiguous():
        return "its weight is not contiguous"
    return ""


def _sites(stored: _Stored, recorder: _Recorder) -> list[Site]:
    """One for each way in which it was used, in the order of what they use."""
    owner, made = stored.places[0][0], dict[Any, Site]()
    for call, layout, _ in stored.uses:
        site = Site(
            "",
            call.kind,
            layout.permuted(call.order),
            call.outputs,
            _bias(call, owner, recorder),
            call.options,
        )
        known = made.get(site.key)
        if known is not None and known.bias != site.bias:
            site = replace(site, bias=None)  # each call adds its own
        made[site.key] = site
    return sorted(made.values(), key=lambda site: site.layout.offset)


def _bias(call: Call, owner: str, recorder: _Recorder) -> tuple[str, Layout] | None:
    """The owner's own tensor that the call adds."""
    stored = None if call.bias is None else recorder.of(call.bias)
    if stored is None or call.bias is None or call.bias.ndim != 1 or not stored.tensor.is_contiguous():
        return None
    for path, name in stored.places:
        if path == owner:
            return name, Layout.of(call.bias, stored.tensor)
    return None


def _refused(sites: list[Site], stored: _Stored) -> str:
    covered = torch.zeros(stored.tensor.numel(), dtype=torch.bool)
    for site in sites:
        site.layout.of_flat(covered).fill_(True)
    if not bool(covered.all()):
        return "only a part of its weight was read"
    if sum(site.layout.count for site in sites) > 2 * stored.tensor.numel():
        return f"its weight is used in {len(sites)} ways"
    for site in sites:
        kind = kind_of(site.module(site.matrix(stored.tensor.detach().reshape(-1)), None))
        if kind is None or kind.obstacle:
            return kind.obstacle if kind else "there is no int8 kernel for it"
    return ""
