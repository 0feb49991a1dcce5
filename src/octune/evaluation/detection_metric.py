"""COCO's average precision of boxes: the value that pycocotools prints first, from 0 to 1.

    CocoMAP([Truth(boxes, categories, crowd)], sizes=[(480, 640)]).score([found], [0])

The mean over classes and over ten thresholds of the overlap (0.50 to 0.95), of precision interpolated at 101
recalls; at most 100 boxes for each image and class; crowds are ignored. An item is an image, with the
pseudo-value of the jackknife: only the classes in an image have to be computed again without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octune.errors import EvaluationError
from octune.evaluation.arrays import check_lengths
from octune.evaluation.formulas import jackknifed
from octune.evaluation.metrics import Answer, Array, Floats, Metric, Outputs
from octune.score import Score

__all__ = ["CocoMAP", "Found", "Truth"]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # boxes of an image and a class


@dataclass(frozen=True, slots=True)
class Truth:
    """The objects of an image: boxes as (left, top, right, bottom) in its own pixels, categories, and which
    of them are crowds.
    """

    boxes: Floats
    categories: Array
    crowd: Array


@dataclass(frozen=True, slots=True)
class Found:
    """What a model found in an image: boxes as shares of its width and height, scores and categories."""

    boxes: Floats
    scores: Floats
    categories: Array


@dataclass(frozen=True, slots=True)
class _Class:
    """All boxes of a class, the most certain first: which image they are in, and for each threshold whether
    they are right and whether they count; and the number of objects in every image.
    """

    image: Array
    right: Array
    counts: Array
    objects: Floats

    def precision(self, without: int | None = None) -> float:
        """Its average precision; NaN without any object."""
        kept = slice(None) if without is None else self.image != without
        total = self.objects.sum() - (0 if without is None else self.objects[without])
        if not total:
            return float("nan")
        counts = self.counts[:, kept]
        right = np.cumsum(self.right[:, kept] & counts, axis=1, dtype=np.float64)
        said = np.cumsum(counts, axis=1, dtype=np.float64)
        if not right.shape[1]:
            return 0.0
        precision = right / np.maximum(said, 1e-16)
        precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        found = np.zeros((len(THRESHOLDS), RECALLS.size))
        for row, (recall, precise) in enumerate(zip(right / total, precision, strict=True)):
            places = np.searchsorted(recall, RECALLS, side="left")
            inside = places < recall.size
            found[row, inside] = precise[places[inside]]
        return float(found.mean())


class CocoMAP(Metric):
    """Average precision against the objects of all images; labels are numbers of images.

    ``categories`` says which category a class number of the model is; without it class numbers are
    categories. ``classes`` is how many the model names, where that is known. ``sizes`` are height and width
    of the images.
    """

    name = "coco_map"
    items = "jackknife"

    def __init__(
        self,
        truth: Sequence[Truth],
        sizes: Sequence[tuple[int, int]],
        categories: Mapping[int, int] | None = None,
        classes: int | None = None,
    ) -> None:
        self._truth, self._sizes = truth, sizes
        self._categories, self._classes = categories, classes

    def predictions_from(self, outputs: Outputs, inputs: Any) -> Sequence[Any]:
        """From ``logits`` and ``pred_boxes``, as DETR and its kin answer, or from ``boxes``, ``scores`` and
        ``labels``, as torchvision's models do.
        """
        if {"logits", "pred_boxes"} <= set(outputs):
            return self._of_queries(np.asarray(outputs["logits"]), np.asarray(outputs["pred_boxes"]))
        if not {"boxes", "scores", "labels"} <= set(outputs):
            shapes = {name: np.shape(array) for name, array in outputs.items()}
            raise EvaluationError(
                "coco_map reads the outputs logits and pred_boxes, or boxes, scores and labels with one row "
                f"for each image. Got {shapes} instead."
            )
        height, width = _image_size(inputs)
        scale = np.array([width, height, width, height], np.float64)
        rows = zip(*(np.asarray(outputs[name]) for name in ("boxes", "scores", "labels")), strict=True)
        return [self._made(boxes / scale, scores, classes) for boxes, scores, classes in rows]

    def _of_queries(self, logits: Floats, boxes: Floats) -> list[Found]:
        """The last class is "nothing", if there is one more than the model has names for."""
        logits = logits.astype(np.float64)
        centre, size = boxes[..., :2].astype(np.float64), boxes[..., 2:].astype(np.float64)
        corners = np.concatenate([centre - size / 2, centre + size / 2], axis=-1)
        if self._classes is None or logits.shape[-1] > self._classes:
            odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
            chance = (odds / odds.sum(axis=-1, keepdims=True))[..., :-1]
            best = chance.argmax(axis=-1)
            scores = np.take_along_axis(chance, best[..., None], axis=-1)[..., 0]
            return [self._made(*row) for row in zip(corners, scores, best, strict=True)]
        found = []
        for row, own in zip(1 / (1 + np.exp(-logits)), corners, strict=True):
            best = np.argsort(-row.ravel(), kind="stable")[:MOST]
            query, kind = np.unravel_index(best, row.shape)
            found.append(self._made(own[query], row[query, kind], kind))
        return found

    def _made(self, boxes: Floats, scores: Floats, classes: Array) -> Found:
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise EvaluationError("coco_map is undefined because the model outputs NaN or infinity.")
        known = self._categories
        categories = np.array(
            [int(number) if known is None else known.get(int(number), -1) for number in classes], np.int64
        )
        return Found(np.asarray(boxes, np.float64), np.asarray(scores, np.float64), categories)

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        return []  # boxes say nothing in a line of text

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        images = [
            (self._truth[int(number)], self._in_pixels(found, int(number)))
            for found, number in zip(predictions, labels, strict=True)
        ]
        classes = _by_class(images)
        if not classes:
            raise EvaluationError("coco_map is undefined because the images hold no object.")
        all_of_them = {category: known.precision() for category, known in classes.items()}
        left_out = np.array(
            [_without(number, image, classes, all_of_them) for number, image in enumerate(images)]
        )
        return jackknifed(float(np.mean(list(all_of_them.values()))), left_out)

    def _in_pixels(self, found: Found, number: int) -> Found:
        height, width = self._sizes[number]
        return Found(found.boxes * [width, height, width, height], found.scores, found.categories)


def _without(
    number: int, image: tuple[Truth, Found], classes: Mapping[int, _Class], precisions: Mapping[int, float]
) -> float:
    """The mean over classes without an image."""
    touched = {*image[0].categories.tolist(), *image[1].categories.tolist()} & set(classes)
    again = {category: classes[category].precision(number) for category in touched}
    values = [value for value in {**precisions, **again}.values() if not np.isnan(value)]
    return float(np.mean(values)) if values else float("nan")


def _by_class(images: Sequence[tuple[Truth, Found]]) -> dict[int, _Class]:
    """The classes that have an object."""
    parts: dict[int, list[tuple[int, Floats, Array, Array]]] = {}
    objects: dict[int, Floats] = {}
    for number, (truth, found) in enumerate(images):
        for category in {*truth.categories.tolist(), *found.categories.tolist()}:
            mine, said = truth.categories == category, found.categories == category
            objects.setdefault(category, np.zeros(len(images)))[number] = np.sum(mine & ~truth.crowd)
            order = np.argsort(-found.scores[said], kind="stable")[:MOST]
            right, counts = _matched(truth.boxes[mine], truth.crowd[mine], found.boxes[said][order])
            parts.setdefault(category, []).append((number, found.scores[said][order], right, counts))
    made = {}
    for category, rows in parts.items():
        if not objects[category].any():
            continue
        order = np.argsort(-np.concatenate([scores for _, scores, _, _ in rows]), kind="stable")
        image = np.concatenate([np.full(scores.size, number) for number, scores, _, _ in rows])
        right, counts = (np.concatenate([row[place] for row in rows], axis=1) for place in (2, 3))
        made[category] = _Class(image[order], right[:, order], counts[:, order], objects[category])
    return made


def _matched(truth: Floats, crowd: Array, boxes: Floats) -> tuple[Array, Array]:
    """For each threshold, which boxes are right, and which count. Boxes take objects in the order of their
    scores: the one that they cover best, and a crowd only if nothing else is left.
    """
    right = np.zeros((len(THRESHOLDS), len(boxes)), bool)
    ignored = np.zeros_like(right)
    overlaps = _overlaps(boxes, truth, crowd)
    for row, threshold in enumerate(THRESHOLDS):
        free = np.ones(len(truth), bool)
        for place in range(len(boxes)):
            able = (free | crowd) & (overlaps[place] >= min(threshold, 1 - 1e-10))
            plain = able & ~crowd
            chosen = plain if plain.any() else able
            if not chosen.any():
                continue
            best = np.where(chosen, overlaps[place], -1.0)
            taken = (
                len(best) - 1 - int(best[::-1].argmax())
            )  # of equal ones the last, as COCO's own code does
            free[taken] = False
            right[row, place], ignored[row, place] = True, crowd[taken]
    return right & ~ignored, ~ignored


def _overlaps(boxes: Floats, truth: Floats, crowd: Array) -> Floats:
    """Intersection over union; over a crowd, the share of the box that lies in it."""
    low = np.maximum(boxes[:, None, :2], truth[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], truth[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=-1)
    area, other = (np.prod(some[:, 2:] - some[:, :2], axis=-1) for some in (boxes, truth))
    union = np.where(crowd[None, :], area[:, None], area[:, None] + other[None, :] - shared)
    return np.asarray(shared / np.maximum(union, 1e-12))


def _image_size(inputs: Any) -> tuple[int, int]:
    arrays = list(inputs.values()) if hasattr(inputs, "values") else getattr(inputs, "arrays", [])
    shape = next((tuple(array.shape) for array in arrays if getattr(array, "ndim", 0) == 4), None)
    if shape is None:
        raise EvaluationError("coco_map needs images of shape (rows, channels, height, width) as inputs.")
    return (shape[2], shape[3]) if shape[1] <= 4 else (shape[1], shape[2])
