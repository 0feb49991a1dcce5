"""The mean intersection over union of semantic segmentation.

    MeanIoU().score([[[0, 1], [1, 1]]], [[[0, 1], [0, 255]]]).value

The value is that over all pixels of all images: for each class that occurs, pixels that are rightly said to
be of it over those that are or are said to be; then the mean. Pixels labelled 255 do not count. An item is an
image, with the pseudo-value of the jackknife.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octune.errors import ConfigError, EvaluationError
from octune.evaluation.arrays import check_lengths
from octune.evaluation.formulas import jackknifed
from octune.evaluation.metrics import Answer, Array, Floats, Metric, Outputs
from octune.score import Score

__all__ = ["IGNORED", "MeanIoU", "resized"]

IGNORED = 255  # the label of pixels that belong to no class


class MeanIoU(Metric):
    """Mean IoU of class maps, or of logits (classes first), which are made as large as the image or the
    label.
    """

    name = "mean_iou"
    items = "jackknife"

    def __init__(self, ignore: int = IGNORED) -> None:
        if isinstance(ignore, bool) or not isinstance(ignore, int):
            raise ConfigError(
                f"The 'ignore' option of the metric mean_iou must be a class number. Got {ignore!r} instead."
            )
        self._ignored = ignore

    def predictions_from(self, outputs: Outputs, inputs: Any) -> Sequence[Any]:
        """The class of every pixel of the images that went in."""
        return [_classes(row, _image_size(inputs)) for row in self.predictions(outputs)]

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        named = {name: array for name, array in outputs.items() if np.ndim(array) == 4}
        rows = super().predictions(named or outputs)
        if rows and np.ndim(rows[0]) not in (2, 3):
            raise EvaluationError(
                "mean_iou needs an output of shape (rows, classes, height, width), or class maps. Got "
                f"{np.shape(rows)} instead."
            )
        if rows and any(np.isnan(row).any() for row in rows):
            raise EvaluationError("mean_iou is undefined because the model outputs NaN.")
        return rows

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        return []  # maps say nothing in a line of text

    def check(self, predictions: Sequence[Any], labels: Sequence[Any]) -> None:
        self._counts(predictions, labels)

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        both, said, true = self._counts(predictions, labels)
        value = _mean_iou(*(count.sum(axis=0, keepdims=True) for count in (both, said, true)))[0]
        if np.isnan(value):
            raise EvaluationError("mean_iou is undefined because the labels ignore every pixel.")
        without = _mean_iou(*(count.sum(axis=0) - count for count in (both, said, true)))
        return jackknifed(float(value), without)

    def _counts(self, predictions: Sequence[Any], labels: Sequence[Any]) -> tuple[Floats, Floats, Floats]:
        """Pixels of each image by class: rightly said, said, and true."""
        maps = [(np.asarray(row), np.asarray(label)) for row, label in zip(predictions, labels, strict=True)]
        maps = [(_classes(row, label.shape) if row.ndim == 3 else row, label) for row, label in maps]
        counted = []
        for row, label in maps:
            if row.shape != label.shape:
                raise EvaluationError(
                    f"mean_iou needs labels as large as the images. Got {label.shape} for {row.shape}."
                )
            valid = label != self._ignored
            counted.append((row[valid].astype(np.int64), label[valid].astype(np.int64)))
        if any((label < 0).any() for _, label in counted):
            raise EvaluationError(
                "mean_iou got labels below 0. Expected class numbers, and 255 for no class."
            )
        size = 1 + max((int(part.max()) for pair in counted for part in pair if part.size), default=0)
        tables = [
            tuple(np.bincount(part, minlength=size) for part in (row[row == label], row, label))
            for row, label in counted
        ]
        both, said, true = (np.array(part, np.float64) for part in zip(*tables, strict=True))
        return both, said, true


def _mean_iou(both: Floats, said: Floats, true: Floats) -> Floats:
    union = said + true - both
    occurs = union > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(occurs, both / union, 0.0).sum(axis=1) / occurs.sum(axis=1))


def _image_size(inputs: Any) -> tuple[int, ...] | None:
    """Height and width of the images that went in, where that is plain."""
    arrays = list(inputs.values()) if hasattr(inputs, "values") else getattr(inputs, "arrays", [])
    images = [array for array in arrays if getattr(array, "ndim", 0) == 4]
    if not images:
        return None
    shape = tuple(images[0].shape)
    return shape[2:] if shape[1] <= 4 else shape[1:3]


def _classes(row: Array, size: tuple[int, ...] | None) -> Array:
    if np.ndim(row) == 2:
        return np.asarray(row)
    larger = row if size is None or row.shape[1:] == tuple(size) else resized(row, size)
    return np.asarray(larger.argmax(axis=0).astype(np.uint8 if len(row) <= 256 else np.int32))


def resized(maps: Array, size: Sequence[int]) -> Array:
    """Maps (channels, height, width) in another size, by bilinear interpolation between the centres of
    pixels.
    """
    rows, columns = (_weights(old, new) for old, new in zip(maps.shape[1:], size, strict=True))
    return np.asarray(rows @ maps.astype(np.float32) @ columns.T)


def _weights(old: int, new: int) -> Array:
    places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    lower = np.minimum(places.astype(int), max(old - 2, 0))
    weights = np.zeros((new, old), np.float32)
    weights[np.arange(new), lower] = 1 - (places - lower)
    weights[np.arange(new), np.minimum(lower + 1, old - 1)] += places - lower
    return weights
