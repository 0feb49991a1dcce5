"""Which functions a model calls with its own weights, found by running it on one batch.

    found = find(model, call)
    found.sites         # {(owner, name of the tensor): [Site, ...]}
    found.floats        # what multiplies by a weight and has to stay float, with the reason

A tensor that is used in no other way than as the weight of such calls can be taken out of its module (see
``weights``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from octune.backends.batches import Inputs
from octune.backends.torch.functions.calls import Call
from octune.backends.torch.functions.layout import Layout
from octune.backends.torch.functions.recording import Place, Recorder, Stored
from octune.backends.torch.functions.weights import Site
from octune.backends.torch.kinds import kind_of

__all__ = ["HIDDEN", "Float", "Functions", "Place", "find"]


HIDDEN = "its product is computed where no call can be replaced (TorchScript, vmap, C++)"


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


def find(model: nn.Module, call: Inputs) -> Functions:
    """Run the model on one batch, and sort out what it did with its weights."""
    recorder = Recorder(model)
    with recorder.open():
        call(model)
    sites: dict[Place, list[Site]] = {}
    floats: list[Float] = []
    for stored in recorder.stored.values():
        if not stored.multiplies or (stored.uses and all(own for _, _, own in stored.uses)):
            continue
        owner, name = stored.places[0]
        reason = _obstacle(stored)
        if not reason:
            made = _sites(stored, recorder)
            reason = _refused(made, stored)
        if reason:
            if kind_of(recorder.modules[owner]) is None:  # else it is known by its module
                kinds = [*(call.kind for call, *_ in stored.uses), *stored.computed, *stored.products]
                kind = kinds[0] if kinds else "matmul"
                floats.append(Float((owner, name), kind.lower(), stored.tensor, reason))
        else:
            sites[owner, name] = made
    return Functions(sites, floats)


def _obstacle(stored: Stored) -> str:
    if stored.computed:
        return "its weight is computed at every call, not stored"
    if stored.products:
        return f"this {stored.products[0]} is not a product with one large matrix, and has no int8 kernel"
    if not stored.uses:
        return (
            f"its product is computed inside {stored.others[0]}, where nothing can be replaced"
            if stored.others
            else HIDDEN
        )
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


def _sites(stored: Stored, recorder: Recorder) -> list[Site]:
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


def _bias(call: Call, owner: str, recorder: Recorder) -> tuple[str, Layout] | None:
    """The owner's own tensor that the call adds."""
    stored = None if call.bias is None else recorder.of(call.bias)
    if stored is None or call.bias is None or call.bias.ndim != 1 or not stored.tensor.is_contiguous():
        return None
    for path, name in stored.places:
        if path == owner:
            return name, Layout.of(call.bias, stored.tensor)
    return None


def _refused(sites: list[Site], stored: Stored) -> str:
    covered = torch.zeros(stored.tensor.numel(), dtype=torch.bool)
    for site in sites:
        site.layout.of_flat(covered).fill_(True)
    if not bool(covered.all()):
        return "only a part of its weight was read"
    if sum(site.layout.count for site in sites) > 2 * stored.tensor.numel():
        return f"its weight is used in {len(sites)} ways"
    for site in sites:
        kind = kind_of(site.module(site.matrix(stored.tensor.detach().reshape(-1)), None))
        if kind is not None and kind.obstacle:
            return kind.obstacle
    return ""
