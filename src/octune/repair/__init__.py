"""What can be done for an op that int8 hurts, before it is left in float.

A repair is one file here and one entry in ``REPAIRS``: every backend then offers it. Plans are data, and know
repairs by their names.

    static_schemes()                    # what an op with a weight is offered
    repairs_of(scheme)                  # the repairs that a scheme names, to be applied
"""

from __future__ import annotations

from dataclasses import replace

from octune.errors import PlanError
from octune.plan import Scheme
from octune.repair.base import Repair, Repairs, Smoothing
from octune.repair.bias import BIAS
from octune.repair.smooth import SMOOTH, shared_smoothing

__all__ = [
    "BIAS",
    "REPAIRS",
    "SMOOTH",
    "Repair",
    "Repairs",
    "Smoothing",
    "repairs_of",
    "shared_smoothing",
    "static_schemes",
    "without_bias",
]

REPAIRS: tuple[Repair, ...] = (BIAS, SMOOTH)


def repairs_of(scheme: Scheme) -> Repairs:
    """The repairs that a scheme names."""
    known = {repair.name: repair for repair in REPAIRS} if scheme.mode == "static" else {}
    for name in scheme.repairs:
        if name not in known:
            raise PlanError(
                f"The scheme {scheme} has no repair named {name!r}. Static int8 schemes have: "
                f"{', '.join(repair.name for repair in REPAIRS)}; others have none."
            )
    return Repairs(known[name] for name in scheme.repairs)


def static_schemes() -> tuple[Scheme, ...]:
    """The static int8 schemes of an op with a weight: plain, repaired, and with one scale for all outputs."""
    alone = [(repair.name,) for repair in REPAIRS]
    # A corrected bias is free, and goes with everything.
    corrected = [
        (repair.name, correction.name)
        for correction in REPAIRS
        if correction.changes_only_bias
        for repair in REPAIRS
        if not repair.changes_only_bias
    ]
    return (
        Scheme.int8("static"),
        *(Scheme.int8("static", repairs=names) for names in (*alone, *corrected)),
        Scheme.int8("static", granularity="per_tensor"),
    )


def without_bias(scheme: Scheme) -> Scheme:
    """The same scheme without the repairs that change nothing but the bias."""
    kept = tuple(repair.name for repair in repairs_of(scheme) if not repair.changes_only_bias)
    return replace(scheme, repairs=kept)
