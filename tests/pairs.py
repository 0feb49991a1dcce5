"""Which weights a CPU without an int8 dot product adds the products of, written down once more: slowly, and
weight by weight.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def largest_pairs(values: Array) -> Array:
    """For every output of a weight (outputs, inputs, *kernel): the most that two neighbours of one sign add
    up to.
    """
    return np.array(
        [
            max((_together(a, b) for a, b in _neighbours(output.reshape(len(output), -1))), default=0)
            for output in values
        ]
    )


def _together(a: int, b: int) -> int:
    return max(max(a, 0) + max(b, 0), max(-a, 0) + max(-b, 0))


def _neighbours(output: Array) -> list[tuple[int, int]]:
    """Pairs of (inputs, positions): inputs 2i and 2i + 1 at one position, or any two if an odd number of
    inputs has several positions.
    """
    inputs, positions = output.shape
    if inputs % 2 and positions > 1:
        return list(combinations(output.reshape(-1).tolist(), 2))
    padded = np.vstack([output, np.zeros((inputs % 2, positions), output.dtype)]).tolist()
    return [
        pair
        for even, odd in zip(padded[::2], padded[1::2], strict=True)
        for pair in zip(even, odd, strict=True)
    ]
