"""What a score must match to be compared with the baseline's, item by item.

score, pairing = evaluator.baseline(fp32)       # pairing.to_json() goes into the journal
evaluator(int8, pairing)                        # its items are in the order of the baseline's, or it has none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["Pairing"]


@dataclass(frozen=True, slots=True)
class Pairing:
    """What scoring the baseline told about the data.

    ``counts`` and ``digests`` have one entry per batch: how many items it has (None where an item lies across
    batches), and a digest of its labels. ``items`` is how many items a function scores in all, where only a
    share of them is looked at. ``kinds`` says how each output is compared, in a run without labels.
    """

    counts: tuple[int | None, ...] = ()
    digests: tuple[str, ...] = ()
    items: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)

    def without_batches(self) -> Pairing:
        """What also holds for other batches of the same data."""
        return replace(self, counts=(), digests=())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pairing:
        """The inverse of :meth:`to_json`."""
        return cls(tuple(data["counts"]), tuple(data["digests"]), data["items"], dict(data["kinds"]))
