"""What an op could be: a ladder of schemes, from the fastest to fp32. Every rung does less harm than the one
below it, and costs more.

    ladder = space.ladders["layer.query"]
    ladder[0].scheme, ladder[1].kind, ladder[-1].cost       # int8, repaired, what fp32 costs more than int8
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from octune.plan import Scheme

__all__ = ["KINDS", "Ladder", "Rung", "climb", "kind_of", "pareto", "raised"]

KINDS = ("fastest", "repaired", "dynamic", "bf16", "fp32")


@dataclass(frozen=True, slots=True)
class Rung:
    """A scheme of one op, the harm it does, and what it costs more than the fastest scheme."""

    scheme: Scheme
    harm: float
    cost: float

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`; a ladder has one rung of a kind at most."""
        return "fastest" if self.cost == 0 else kind_of(self.scheme)


Ladder = tuple[Rung, ...]


def kind_of(scheme: Scheme) -> str:
    """What a scheme is if it is not the fastest one."""
    if scheme.is_float:
        return scheme.dtype
    return "repaired" if scheme.repairs else "dynamic" if scheme.is_dynamic else "fastest"


def pareto(first: Rung, others: Iterable[Rung]) -> Ladder:
    """The ladder of these rungs: one that is not less harmful than a cheaper one is left out. fp32 stays:
    what bf16 does is only believed.
    """
    ladder = [first]
    for rung in sorted(others, key=lambda rung: (rung.cost, rung.harm, rung.scheme.dtype != "fp32")):
        if rung.harm < ladder[-1].harm or rung.scheme.dtype == "fp32":
            ladder.append(rung)
    return tuple(ladder)


def raised(ladder: Ladder, extra: float) -> Ladder:
    """The ladder of an op that does this much more harm than was measured of it alone; repairs help as
    before.
    """
    plain = ladder[0].harm
    return tuple(
        replace(
            rung,
            harm=rung.harm * (1 + extra / plain) if plain > 0 else 0.0 if rung.scheme.is_float else extra,
        )
        for rung in ladder
    )


def climb(ladder: Ladder, rung: Rung) -> Rung | None:
    """The rung above this one that removes the most harm for its cost; None at the top."""
    above = ladder[ladder.index(rung) + 1 :]
    return max(above, key=lambda other: (rung.harm - other.harm) / (other.cost - rung.cost), default=None)
