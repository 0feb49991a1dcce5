"""The probe that works for every backend: quantize one op alone, and see how far the output moves.

    harm = probe(backend, {"layer.query": [Scheme.int8()]}, ranges, inputs)

Costs one forward pass for each op and scheme; a backend with gradients can do all of them in three (see the
torch backend).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octune.calibration import Ranges
from octune.plan import Plan, Scheme

if TYPE_CHECKING:
    from octune.backends.base import Backend
    from octune.backends.terms import Outputs

__all__ = ["largest_change", "output_change", "output_spread", "probe"]


def probe(
    backend: Backend,
    candidates: Mapping[str, Sequence[Scheme]],
    ranges: Ranges,
    inputs: Sequence[Any],
    only: Collection[str] | None = None,
) -> dict[tuple[str, Scheme], float]:
    """Mean squared output change by (op, scheme), relative to the output's variance; of all candidates, or of
    ``only`` these.
    """
    wanted = backend.outputs(Plan(), ranges, inputs)
    return {
        (op, scheme): output_change(wanted, backend.outputs(Plan({op: scheme}), ranges, inputs))
        for op, schemes in candidates.items()
        if only is None or op in only
        for scheme in schemes
    }


def output_change(wanted: Sequence[Outputs], got: Sequence[Outputs]) -> float:
    """Squared difference of two sets of outputs over the variance of the first."""
    change = spread = 0.0
    for before, after in zip(wanted, got, strict=True):
        for name, array in before.items():
            if array.ndim == 0 or not np.issubdtype(array.dtype, np.floating):
                continue
            change += float(np.square(after[name] - array).sum())
            spread += output_spread(array)
    return change / spread if spread > 0 else 0.0


def largest_change(wanted: Sequence[Outputs], got: Sequence[Outputs]) -> float:
    """The largest difference of any number of two sets of outputs, over the standard deviation of that
    output; infinite where whole numbers differ, or shapes.
    """
    worst = 0.0
    for before, after in zip(wanted, got, strict=True):
        if before.keys() != after.keys():
            return np.inf
        for name, array in before.items():
            other = np.asarray(after[name])
            if array.shape != other.shape:
                return np.inf
            if not np.issubdtype(array.dtype, np.floating):
                if not np.array_equal(array, other):
                    return np.inf
            elif array.size:
                spread = np.sqrt(
                    output_spread(array.reshape(len(array) if array.ndim else 1, -1)) / array.size
                )
                change = float(np.abs(other - array).max())
                if not np.isfinite(change) or (change and not spread):
                    return np.inf
                worst = max(worst, change / spread if change else 0.0)
    return worst


def output_spread(array: npt.NDArray[Any]) -> float:
    """What changes of an output are relative to: its variance over samples, times their number."""
    centred = float(np.square(array - array.mean(axis=0)).sum())
    # A single sample, or a constant output: its change is compared with the output itself.
    return centred if centred > 1e-20 else float(np.square(array).sum())
