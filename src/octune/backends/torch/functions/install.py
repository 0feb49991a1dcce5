"""Putting ops that are functions into a model, as modules that can be swapped.

    model, found = with_functions(model, call)  # a light copy in which functions call children of modules
    names(model)                                # {path of the child: name of the op}
    told = describe(model)                      # plain data, with which
    rebuild(model, told)                        # makes the same of another model of that class

A model in which no function multiplies by a weight is returned as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from octune.backends.batches import Inputs
from octune.backends.torch.batches import named_outputs, same_answers
from octune.backends.torch.copying import light_copy
from octune.backends.torch.functions.find import HIDDEN, Float, Place, find
from octune.backends.torch.functions.layout import Layout
from octune.backends.torch.functions.weights import Site, StandIn, stored_in
from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import Kind, kind_of

__all__ = ["describe", "is_taken", "names", "rebuild", "with_functions"]

log = logging.getLogger("octune")
# What the parts of attention's packed weight are for, by how many there are.
PACKED = {2: ("q", "kv"), 3: ("q", "k", "v")}


def with_functions(model: nn.Module, call: Inputs) -> tuple[nn.Module, list[Float]]:
    """A light copy with the functions that were found as modules, and those that have to stay float."""
    try:
        found = find(model, call)
    except Exception:  # the model's own code may not bear being watched
        log.debug("the model cannot be run while its functions are watched", exc_info=True)
        return model, []
    if not found.sites:
        return model, found.floats
    with torch.inference_mode():
        wanted = named_outputs(call(model))
    sites = dict(found.sites)
    changed, idle = _tried(model, sites, call, wanted)
    if changed is None or idle:
        # Some are not what they seem. Those that never ran are known, others are found out one at a time.
        sites = {
            place: listed
            for place, listed in sites.items()
            if place not in idle and (changed is not None or _works(model, {place: listed}, call, wanted))
        }
        changed, _ = _tried(model, sites, call, wanted)
        sites = {} if changed is None else sites
    lost = [
        Float(place, listed[0].kind.lower(), weight, HIDDEN)
        for place, listed in found.sites.items()
        if place not in sites and (weight := stored_in(model.get_submodule(place[0]), place[1])) is not None
    ]
    return (changed if changed is not None and sites else model), [*found.floats, *lost]


def _works(model: nn.Module, sites: Mapping[Place, Sequence[Site]], call: Inputs, wanted: Any) -> bool:
    changed, idle = _tried(model, sites, call, wanted)
    return changed is not None and not idle


def _tried(
    model: nn.Module, sites: Mapping[Place, Sequence[Site]], call: Inputs, wanted: Mapping[str, Any]
) -> tuple[nn.Module | None, set[Place]]:
    """The model with functions as modules, or None if it answers differently; and those that did not run."""
    changed = _installed(model, sites)
    ran: set[nn.Module] = set()
    children = {
        (path, stand_in.tensor): [owner.get_submodule(site.child) for site in stand_in.sites.values()]
        for path, owner, stand_in in _stand_ins(changed)
    }
    handles = [
        child.register_forward_pre_hook(lambda module, args: ran.add(module))
        for listed in children.values()
        for child in listed
    ]
    try:
        with hooks(handles):
            same = same_answers(changed, call, wanted)
    except Exception:  # the model's own code may do anything with what it takes for its weight
        log.debug("the model cannot be run with functions taken out of it", exc_info=True)
        return None, set()
    return (changed if same else None), {
        place for place, listed in children.items() if not ran.issuperset(listed)
    }


def _installed(model: nn.Module, sites: Mapping[Place, Sequence[Site]]) -> nn.Module:
    copied = light_copy(model)
    for (path, name), listed in reversed(list(sites.items())):  # each is put before those that are there
        owner = copied.get_submodule(path)
        tensor = stored_in(owner, name)
        if tensor is None:
            continue
        flat = tensor.detach().reshape(-1)
        leaves = _leaves(owner, name, listed, _contiguous(tensor.shape))
        named = [replace(site, child=leaf) for site, leaf in zip(listed, leaves, strict=True)]
        children = {
            site.child: site.module(site.matrix(flat), _bias(owner, site)).requires_grad_(False)
            for site in named
        }
        _replace(owner, name, tuple(tensor.shape), named, children)
    return copied.eval()


def _bias(owner: nn.Module, site: Site) -> torch.Tensor | None:
    if site.bias is None:
        return None
    name, layout = site.bias
    stored = stored_in(owner, name)
    return None if stored is None else layout.of_flat(stored.detach().reshape(-1))


def _leaves(owner: nn.Module, name: str, sites: Sequence[Site], whole: Layout) -> list[str]:
    """What its children are called: as the tensor, but a module has either a tensor or a child of a name."""
    leaf = name.removesuffix("_weight")
    leaf = name if leaf in owner._modules else leaf
    parts = [str(place) for place in range(len(sites))]
    if len({site.kind for site in sites}) == len(sites):  # a table that is also multiplied by
        parts = [site.kind.lower() for site in sites]
    elif isinstance(owner, nn.MultiheadAttention):
        parts = list(PACKED.get(len(sites), parts))
    kind = kind_of(owner)
    plain = [
        leaf if len(sites) == 1 or _is_own(kind, site, whole) else f"{leaf}_{part}"
        for site, part in zip(sites, parts, strict=True)
    ]
    return [f"{one}_op" if hasattr(owner, one) else one for one in plain]


def _is_own(kind: Kind | None, site: Site, whole: Layout) -> bool:
    """Whether a use is that of the module itself: of a Linear's weight, as it is, in a linear product."""
    return kind is not None and kind.plain.__name__ == site.kind and site.layout == whole


def _replace(
    owner: nn.Module,
    name: str,
    shape: Sequence[int],
    sites: Sequence[Site],
    children: Mapping[str, nn.Module],
) -> None:
    """Take a tensor out of its module, and put children and a stand-in in its place."""
    owner._parameters.pop(name, None)
    owner._buffers.pop(name, None)
    before = dict(owner._modules)
    owner._modules.clear()
    owner._modules.update(
        {**children, **before}
    )  # what projects the inputs comes before what is made of them
    whole = _contiguous(shape)
    owner.__dict__[name] = StandIn(owner, name, {site.key: site for site in sites}, whole.count, whole)
    for bias in {site.bias[0] for site in sites if site.bias is not None}:
        if (stored := stored_in(owner, bias)) is not None:
            layout = _contiguous(stored.shape)
            owner.__dict__[bias] = StandIn(owner, bias, {}, layout.count, layout)


def _contiguous(shape: Sequence[int]) -> Layout:
    return Layout.of(torch.empty(tuple(shape), device="meta"))


def _stand_ins(model: nn.Module) -> Iterator[tuple[str, nn.Module, StandIn]]:
    for path, module in model.named_modules():
        for value in list(module.__dict__.values()):
            if isinstance(value, StandIn) and value.sites:
                yield path, module, value


def is_taken(module: nn.Module) -> bool:
    """Whether functions have taken a module's weight: it is then no op itself, its child is."""
    return isinstance(module.__dict__.get("weight"), StandIn)


def names(model: nn.Module) -> dict[str, str]:
    """The names of ops by the path of the module that computes them: the module's name and its tensor's, or
    only the module's if it is of a kind that is known by itself.
    """
    found: dict[str, str] = {}
    for path, owner, tensor in _stand_ins(model):
        kind = kind_of(owner)
        for site in tensor.sites.values():
            leaf = site.child.removesuffix("_op")
            own = leaf == "weight" and _is_own(kind, site, tensor.layout_)
            full = [path] if own else [path, leaf]
            found[".".join(filter(None, [path, site.child]))] = ".".join(filter(None, full)) or leaf
    return found


def describe(model: nn.Module) -> list[dict[str, Any]]:
    """What :func:`rebuild` needs to know, as plain data."""
    return [
        {
            "owner": path,
            "name": tensor.tensor,
            "shape": list(tensor.shape),
            "sites": [site.to_json() for site in tensor.sites.values()],
        }
        for path, _, tensor in _stand_ins(model)
    ]


def rebuild(model: nn.Module, told: Sequence[Mapping[str, Any]]) -> None:
    """Make a model of the same class ready to take the layers and tensors that were saved."""
    for item in told:
        owner = model.get_submodule(item["owner"])
        sites = [Site.from_json(data) for data in item["sites"]]
        whole = _contiguous(item["shape"])
        empty = torch.empty(whole.count, device="meta")
        children = {site.child: site.module(site.matrix(empty), _bias(owner, site)) for site in sites}
        _replace(owner, item["name"], item["shape"], sites, children)
