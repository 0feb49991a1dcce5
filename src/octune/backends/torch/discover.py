"""Which modules of a model could be quantized, and how.

    for found in discover(model):
        found.op, found.module

A module counts by what it computes: a subclass that overrides ``forward`` computes something else and is left
alone, unless it is a convolution that only pads by itself (see ``geometry``).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from octune.backends.torch.geometry import geometry_of
from octune.machine import probe_machine
from octune.plan import Op, Scheme
from octune.repair import static_schemes

__all__ = ["Found", "discover", "kind_of"]


def _schemes(kind: str) -> tuple[Scheme, ...]:
    """What a kind of module can run as, the CPU permitting."""
    floats = (Scheme.bf16(), Scheme.fp32())
    if kind == "embedding":
        return (Scheme.int8("weight"), Scheme.int8("weight", granularity="per_tensor"), *floats)
    if kind == "conv2d":
        # Dynamic ranges cost a pass over the whole image before the convolution can begin: never worth it.
        return (*static_schemes(), *floats)
    return (
        *static_schemes(),
        Scheme.int8("dynamic"),
        Scheme.int8("dynamic", granularity="per_tensor"),
        *floats,
    )


OWN = "{} computes something of its own"


@dataclass(frozen=True, slots=True)
class Found:
    """An op and the module that computes it."""

    op: Op
    module: nn.Module


def kind_of(module: nn.Module) -> str | None:
    """``linear``, ``conv1d`` (the transposed Linear of GPT-2), ``conv2d``, ``embedding``, or None."""
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d):
        return "conv2d"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
        return "conv1d"
    return None


def discover(model: nn.Module) -> list[Found]:
    """All quantizable ops in the order of the model, each once, whatever number of places it stands in."""
    places: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        places.setdefault(id(module), []).append(name)
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    found, machine = [], probe_machine()
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None:
            continue
        weight = module.get_parameter("weight") if "weight" in module._parameters else None
        aliases = tuple(places[id(module)][1:])
        notes = [f"shared: also stands at {', '.join(aliases)}"] if aliases else []
        schemes = tuple(scheme for scheme in _schemes(kind) if machine.runs(scheme.dtype))
        if weight is None:
            schemes, notes = (Scheme.fp32(),), ["its weight is computed (a parametrization), not stored"]
        else:
            tied = [owner for owner in owners.get(id(weight), []) if owner != name]
            if tied:
                notes.append(f"its weight is tied to {', '.join(tied)}; quantizing unties them")
            reason = _cannot(module)
            if reason:
                schemes, notes = (Scheme.fp32(),), [reason]
        size = 0 if weight is None else weight.numel()
        found.append(
            Found(
                Op(
                    name,
                    kind,
                    schemes,
                    size,
                    signature=f"{type(module).__name__}({module.extra_repr()})",
                    note="; ".join(notes),
                    aliases=aliases,
                ),
                module,
            )
        )
    return found


def _cannot(module: nn.Module) -> str:
    """Why this module cannot be quantized, or an empty string."""
    plain = next(
        (kind for kind in (nn.Linear, nn.Conv2d, nn.Embedding) if isinstance(module, kind)), type(module)
    )
    own = type(module).forward is not plain.forward
    if isinstance(module, nn.Conv2d):
        if geometry_of(module) is None:
            return (
                OWN.format(type(module).__name__)
                if own
                else f"its padding ({module.padding_mode}) has no int8 kernel"
            )
    elif own:
        return OWN.format(type(module).__name__)
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "its rows are renormalised when they are read (max_norm)"
    return ""
