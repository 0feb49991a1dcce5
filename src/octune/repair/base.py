"""What a repair is, and what the repairs of a scheme do together.

    BIAS = Repair("bias", bias=bias_correction)

    repairs = repairs_of(scheme)
    found = repairs.smoothing(stats, [(weight, groups)])                    # None: the input stays as it is
    made = repairs.int8_weight(weight, groups, granularity, limit, multiplier)
    shift = repairs.bias_shift(stats, weight, made.dequantized(), groups, multiplier)

Weights are arrays of (outputs, inputs of a group, *kernel), whatever framework they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.calibration.observer import TensorStats
from octune.int8 import Int8Weight, Limit, by_input, quantize_weight

__all__ = ["Repair", "Repairs", "Smoothing"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Smoothing:
    """What to multiply every channel of the input by, and the range that the product then has."""

    multiplier: npt.NDArray[np.float32]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Repair:
    """A correction by its name, which schemes refer to. It does one of three things to an op:

    ``smoothing`` multiplies the channels of the input, given its statistics and the weights that read it,
    each with its number of groups. ``weight`` changes the float weight before it becomes int8. ``bias`` is
    added to the bias, given the statistics of the input, the weight, what is left of it in int8, and groups.
    """

    name: str
    smoothing: Callable[[TensorStats, Sequence[tuple[Array, int]]], Smoothing] | None = None
    weight: Callable[[Array], Array] | None = None
    bias: Callable[[TensorStats, Array, Array, int], Array] | None = None

    @property
    def changes_kernel(self) -> bool:
        """Whether a repaired op has other work to do: other numbers take as long."""
        return self.smoothing is not None

    @property
    def has_own_range(self) -> bool:
        """Whether the range of the input follows from the repair, not from a range method."""
        return self.smoothing is not None

    @property
    def changes_only_bias(self) -> bool:
        return self.bias is not None


class Repairs(tuple[Repair, ...]):
    """The repairs of one scheme, in its order."""

    __slots__ = ()

    @property
    def smooths(self) -> bool:
        """Whether the input is multiplied."""
        return any(repair.smoothing is not None for repair in self)

    @property
    def corrects_bias(self) -> bool:
        """Whether something is added to the bias."""
        return any(repair.bias is not None for repair in self)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The repairs that the int8 weight depends on besides smoothing."""
        return tuple(repair.name for repair in self if repair.weight is not None)

    def smoothing(self, stats: TensorStats, weights: Sequence[tuple[Array, int]]) -> Smoothing | None:
        """What the input, which all these weights read, is multiplied by; None if it stays as it is."""
        return next((repair.smoothing(stats, weights) for repair in self if repair.smoothing), None)

    def int8_weight(
        self,
        weight: Array,
        groups: int,
        granularity: str | None,
        limit: Limit,
        multiplier: Array | None = None,
    ) -> Int8Weight:
        """A weight in int8, for an input whose channels are multiplied by ``multiplier``."""
        if multiplier is not None:
            weight = weight / by_input(multiplier, weight, groups)
        for repair in self:
            if repair.weight is not None:
                weight = repair.weight(weight)
        return quantize_weight(weight, granularity, limit)

    def bias_shift(
        self,
        stats: TensorStats,
        weight: Array,
        dequantized: Array,
        groups: int = 1,
        multiplier: Array | None = None,
    ) -> Array:
        """What is added to the bias. ``dequantized`` is what is left of the weight in int8, ``multiplier``
        what its input is multiplied by.
        """
        if multiplier is not None:
            dequantized = dequantized * by_input(multiplier, dequantized, groups)
        shifts = [repair.bias(stats, weight, dequantized, groups) for repair in self if repair.bias]
        return np.asarray(np.sum(shifts, axis=0, dtype=np.float32))
