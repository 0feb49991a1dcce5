"""Which modules of a model could be quantized, and how.

    for found in discover(model):
        found.op, found.kind, found.module

A module counts by what it computes: a subclass that overrides ``forward`` computes something else and is left
alone, unless it is a convolution that only pads by itself (see ``kinds.geometry``).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from octune.backends.torch.functions.install import is_taken, names
from octune.backends.torch.kinds import Kind, kind_of
from octune.machine import probe_machine
from octune.plan import Op, Scheme

__all__ = ["Found", "discover"]


@dataclass(frozen=True, slots=True)
class Found:
    """An op, and the module that computes it as one of its kind."""

    op: Op
    kind: Kind
    path: str  # of the module; the op of a function has another name

    @property
    def module(self) -> nn.Module:
        return self.kind.module


def discover(model: nn.Module) -> list[Found]:
    """All quantizable ops in the order of the model, each once, however many places it is used in."""
    places: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        places.setdefault(id(module), []).append(name)
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    found, machine, functions = [], probe_machine(), names(model)
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None or is_taken(module):
            continue
        weights = kind.weights
        obstacle = kind.obstacle if weights else "its weight is computed (a parametrization), not stored"
        if obstacle:
            schemes: tuple[Scheme, ...] = (Scheme.fp32(),)
            notes = [obstacle]
        else:
            schemes = tuple(scheme for scheme in kind.schemes() if machine.runs(scheme.dtype))
            others = places[id(module)][1:]
            tied = [owner for weight in weights for owner in owners.get(id(weight), []) if owner != name]
            notes = [f"shared: also used as {', '.join(others)}"] if others else []
            notes += [f"its weight is tied to {', '.join(tied)}; quantizing unties them"] if tied else []
        op = Op(
            functions.get(name, name),
            kind.name,
            schemes,
            sum(weight.numel() for weight in weights),
            signature=f"{type(module).__name__}({module.extra_repr()})",
            note="; ".join(notes),
        )
        found.append(Found(op, kind, name))
    return found
