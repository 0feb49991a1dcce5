"""What ops weigh: the cost that counts when the objective is size, not speed.

weight_bytes(ops)["classifier", Scheme.int8()]       # bytes of its weights in that scheme
"""

from __future__ import annotations

from collections.abc import Sequence

from octune.plan import Op, Scheme

__all__ = ["weight_bytes"]

BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


def weight_bytes(ops: Sequence[Op]) -> dict[tuple[str, Scheme], float]:
    """Bytes of every op's weights in every scheme it may use."""
    return {
        (op.name, scheme): float(BYTES[scheme.dtype] * op.parameters) for op in ops for scheme in op.schemes
    }
