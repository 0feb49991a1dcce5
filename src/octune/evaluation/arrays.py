"""Predictions and labels as arrays that a metric can compute with, or what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from octune.errors import EvaluationError

__all__ = ["are_logits", "as_array", "check_lengths", "class_numbers", "numbers"]

Array: TypeAlias = npt.NDArray[Any]


def check_lengths(name: str, predictions: Sequence[Any], labels: Sequence[Any]) -> int:
    """How many items there are, which must be at least one, and one prediction for each label."""
    if len(predictions) != len(labels):
        raise EvaluationError(
            f"{name} needs one prediction per label. Got {len(predictions)} predictions and {len(labels)} "
            "labels."
        )
    if len(labels) == 0:
        raise EvaluationError(f"{name} is undefined because there are no items. Give it at least one batch.")
    return len(labels)


def are_logits(predictions: Array, labels: Array) -> bool:
    """Whether there are several numbers for each item whose label is one class."""
    return (
        predictions.ndim == 2 and predictions.shape[1] > 1 and labels.ndim == 1 and labels.dtype.kind in "iu"
    )


def as_array(values: Sequence[Any]) -> Array:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths: the user's function gets them as they are
        array = np.empty(len(values), dtype=object)
        array[:] = list(values)
        return array


def numbers(name: str, what: str, values: Sequence[Any], count: int, *, finite: bool = False) -> Array:
    """An array of numbers with one row per item; lone trailing axes are dropped, so (n, 1) is (n,).

    NaN is refused everywhere, infinity only where asked: -inf is how some models rule out a class.
    """
    array = as_array(values)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise EvaluationError(
            f"{name} needs {what} that are numbers, the same shape for every item. Got {_sample(values)} "
            "instead."
        )
    bad = ~np.isfinite(array) if finite else np.isnan(array)
    if bad.any():
        rows = int(bad.reshape(count, -1).any(axis=1).sum())
        raise EvaluationError(
            f"{name} is undefined because {rows} of {count} {what} are "
            f"{'NaN or infinite' if finite else 'NaN'}."
        )
    while array.ndim > 1 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def class_numbers(name: str, what: str, array: Array) -> Array:
    if array.ndim != 1 or not np.array_equal(array, np.floor(array)) or not np.isfinite(array).all():
        raise EvaluationError(
            f"{name} needs {what} that are class numbers, or for predictions at least two logits per item. "
            f"Got {_sample(array)} instead."
        )
    return array.astype(np.int64)


def _sample(values: Sequence[Any] | Array) -> str:
    text = repr(values[0])
    return text if len(text) <= 80 else text[:77] + "..."
