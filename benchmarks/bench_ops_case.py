"""A case of benchmarks/ops.py: one op kind in a shape, and the forms in which it is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """``forms`` makes calls that return the op's output, by name; the first is fp32. A call that returns
    nothing has a ``value()`` that does.
    """

    kind: str
    title: str
    forms: Callable[[], Mapping[str, Callable[[], Any]]]

    def errors(self, forms: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """How far the output of each form is from that of the first, relative to it."""
        outputs = {
            name: np.asarray(getattr(call, "value", call)(), np.float64) for name, call in forms.items()
        }
        exact = next(iter(outputs.values()))
        size = float(np.linalg.norm(exact)) or 1.0
        return {name: float(np.linalg.norm(made - exact)) / size for name, made in outputs.items()}
