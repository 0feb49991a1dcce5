"""How much of a model's arithmetic int8 reaches: shares of its multiply-adds.

    work = backend.work(inputs)                 # what one batch computes in fp32
    coverage = Coverage.of(plan, ops, work)
    print(coverage)                             # 83% int8, 12% fp32 for accuracy, 5% fp32 not seen (matmul)
    print(Coverage.ran(work))                   # of a finished model: 95% int8, 5% fp32 in matmul

Products are counted, because they are what int8 makes faster. Ops that multiply nothing with each other
(softmax, normalisations, activation functions) are listed by how often they ran. The counts are of fp32 as it
ran: they are the same under every plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import prod
from typing import Any

from octune.plan import Op, Plan

__all__ = ["ACCURACY", "SLOWER", "Coverage", "Work", "einsum_products", "percent"]

# How reasons begin for which an op that could be int8 is not.
ACCURACY, SLOWER = "accuracy", "int8 is slower"
UNABLE, UNSEEN, RAN = "without an int8 form here", "not seen", "in"
MOST = 6  # types that a line of text names


@dataclass(frozen=True, slots=True)
class Work:
    """Multiply-adds of one batch through fp32: of every op by name, and of what is not among the ops by its
    type.

    ``uncounted`` are types that multiply as well, but how much is not known (inside loops, say); ``others``
    multiply nothing. Of both it is known how many ran.
    """

    ops: Mapping[str, int]
    unseen: Mapping[str, int] = field(default_factory=dict)
    uncounted: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All multiply-adds that could be counted."""
        return sum(self.ops.values()) + sum(self.unseen.values())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {item.name: dict(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Work:
        """The inverse of :meth:`to_json`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the multiply-adds, from 0 to 1. ``fp32`` is told apart in ``why``: how much of it stays fp32
    for which reason. ``unseen`` are the shares of what is not among the ops, by type.
    """

    int8: float
    bf16: float
    fp32: float
    multiply_adds: int
    why: Mapping[str, float] = field(default_factory=dict)
    unseen: Mapping[str, float] = field(default_factory=dict)
    uncounted: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, plan: Plan, ops: Iterable[Op], work: Work, kept: Mapping[str, str] | None = None
    ) -> Coverage | None:
        """The coverage of a plan; ``kept`` has the reasons why ops are not int8, where they are known. None
        if nothing was counted.
        """
        if not work.total:
            return None
        able = {op.name: op.can("int8") for op in ops}
        shares: Counter[str] = Counter()
        why: Counter[str] = Counter()
        for name, count in work.ops.items():
            dtype = plan[name].dtype if name in plan else "fp32"
            shares[dtype] += count
            if dtype == "fp32":
                why[_reason(able.get(name, True), (kept or {}).get(name, ""))] += count
        missed = sum(work.unseen.values())
        why[UNSEEN] += missed
        total = work.total
        return cls(
            shares["int8"] / total,
            shares["bf16"] / total,
            (shares["fp32"] + missed) / total,
            total,
            {reason: count / total for reason, count in why.most_common() if count},
            {name: count / total for name, count in _largest(work.unseen)},
            dict(_largest(work.uncounted)),
            dict(_largest(work.others)),
        )

    @classmethod
    def ran(cls, work: Work) -> Coverage | None:
        """The coverage of a finished model, whose ops are known by what they compute in alone: the names of
        ``work.ops`` are "int8" and "bf16", and everything else is fp32.
        """
        if not work.total:
            return None
        rest, total = sum(work.unseen.values()), work.total
        return cls(
            work.ops.get("int8", 0) / total,
            work.ops.get("bf16", 0) / total,
            rest / total,
            total,
            {RAN: rest / total} if rest else {},
            {name: count / total for name, count in _largest(work.unseen)},
            dict(_largest(work.uncounted)),
            dict(_largest(work.others)),
        )

    def __str__(self) -> str:
        parts = [
            f"{percent(share)} {dtype}"
            for dtype, share in (("int8", self.int8), ("bf16", self.bf16))
            if share
        ]
        for reason, share in self.why.items():
            named = {UNSEEN: f" ({_some(self.unseen)})", RAN: f" {_some(self.unseen)}"}.get(reason, "")
            parts.append(f"{percent(share)} fp32 {reason}".rstrip() + named)
        return ", ".join(parts)

    @property
    def beside(self) -> str:
        """What the shares do not contain, in words; empty if there is nothing."""
        said = [f"not counted: {_numbers(self.uncounted)}"] if self.uncounted else []
        said += [f"multiply nothing: {_numbers(self.others)}"] if self.others else []
        return "; ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def _reason(able: bool, said: str) -> str:
    if said.startswith(ACCURACY):
        return "for accuracy"
    if said.startswith(SLOWER):
        return "because int8 is slower"
    return "" if able else UNABLE


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def percent(share: float) -> str:
    """A share in whole percents; neither 0% nor 100% unless it is exactly that."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:MOST]) + (", ..." if len(listed) > MOST else "")


def _numbers(counts: Mapping[str, int]) -> str:
    return _some(f"{name} {count}" for name, count in counts.items())


def einsum_products(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """The multiply-adds of an einsum: one for each combination of all its letters, where it has two operands
    or more.
    """
    if len(shapes) < 2:
        return 0
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=True):
        before, dots, after = term.partition("...")
        spread = list(shape[len(before) : len(shape) - len(after)]) if dots else []
        letters = [*before, *(f"...{len(spread) - place}" for place in range(len(spread))), *after]
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return prod(sizes.values())
