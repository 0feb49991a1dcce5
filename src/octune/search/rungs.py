"""What a sampler may choose for an op: a handful of rungs, from the fastest scheme to fp32.

rungs(space, "layer.query")         # {"fastest": int8 ..., "repaired": int8 ... +smooth, "bf16": bf16,
"fp32": fp32}
"""

from __future__ import annotations

from octune.plan import Scheme
from octune.search.space import Space

__all__ = ["RUNGS", "rungs"]

RUNGS = ("fastest", "repaired", "dynamic", "bf16", "fp32")


def rungs(space: Space, op: str) -> dict[str, Scheme]:
    """The rungs that this op has, in the order of :data:`RUNGS`. Of several schemes of one rung, the least
    harmful.
    """
    first, *others = space.options(op)
    found = {"fastest": first.scheme}
    for rung in RUNGS[1:]:
        some = [option for option in others if _rung(option.scheme) == rung]
        if some:
            found[rung] = min(some, key=lambda option: option.harm).scheme
    return found


def _rung(scheme: Scheme) -> str:
    if scheme.is_float:
        return scheme.dtype
    return "repaired" if scheme.repairs else "dynamic" if scheme.mode == "dynamic" else "fastest"
