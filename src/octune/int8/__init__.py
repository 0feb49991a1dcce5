"""int8 arithmetic in NumPy, once for all backends: weights, and the grid that activations are rounded to.

A kernel must find exactly these numbers: which weights it is given, and what a level of its input stands for.
"""

from octune.int8.grid import Grid
from octune.int8.weights import (
    ANYWHERE,
    LARGEST,
    LARGEST_OF_TWO_ACTIVATIONS,
    NEEDS_EXACT,
    Int8Weight,
    Limit,
    by_input,
    by_output,
    limit_for,
    limited_again,
    quantize_weight,
)

__all__ = [
    "ANYWHERE",
    "Grid",
    "Int8Weight",
    "LARGEST",
    "LARGEST_OF_TWO_ACTIVATIONS",
    "Limit",
    "NEEDS_EXACT",
    "by_input",
    "by_output",
    "limit_for",
    "limited_again",
    "quantize_weight",
]
