"""Average precision of boxes: pycocotools' values, and what is left without each image."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest

from octune.errors import EvaluationError
from octune.evaluation.detection_metric import CocoMAP, Found, Truth

SIZES = [(100, 120)] * 12


def boxes(random: Any, count: int) -> Any:
    corner = random.uniform(0, 70, (count, 2))
    return np.concatenate([corner, corner + random.uniform(20, 45, (count, 2))], axis=1)


def made(seed: int) -> tuple[list[Truth], list[Found]]:
    random = np.random.default_rng(seed)
    truth, found = [], []
    for height, width in SIZES:
        count = int(random.integers(0, 7))
        own, kinds = boxes(random, count), random.integers(1, 4, count)
        truth.append(Truth(own, kinds, random.random(count) < 0.15))
        seen = random.random(count) < 0.8
        near = own[seen] + random.normal(0, 2.5, (int(seen.sum()), 4))
        stray = int(random.integers(0, 4))
        all_boxes = np.concatenate([near, near[: len(near) // 2] + 1.5, boxes(random, stray)])
        classes = np.concatenate([kinds[seen], kinds[seen][: len(near) // 2], random.integers(1, 5, stray)])
        scores = np.round(random.uniform(0.05, 1, len(all_boxes)), 6)
        found.append(Found(all_boxes / [width, height, width, height], scores, classes))
    return truth, found


def coco(truth: list[Truth], found: list[Found]) -> float:
    """What pycocotools says."""
    tools = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    from pycocotools.cocoeval import COCOeval

    def plain(box: Any) -> list[float]:
        left, top, right, bottom = (float(value) for value in box)
        return [left, top, right - left, bottom - top]

    objects = [
        {"image_id": image, "category_id": int(kind), "bbox": plain(box), "iscrowd": int(crowd)}
        for image, one in enumerate(truth)
        for box, kind, crowd in zip(one.boxes, one.categories, one.crowd, strict=True)
    ]
    for number, one in enumerate(objects, start=1):
        one.update(id=number, area=one["bbox"][2] * one["bbox"][3])
    kinds = sorted({one["category_id"] for one in objects})
    results = [
        {
            "image_id": image,
            "category_id": int(kind),
            "bbox": plain(box * np.tile(SIZES[image][::-1], 2)),
            "score": float(score),
        }
        for image, one in enumerate(found)
        for box, kind, score in zip(one.boxes, one.categories, one.scores, strict=True)
        if int(kind) in kinds
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        data = tools.COCO()
        data.dataset = {
            "images": [{"id": number} for number in range(len(truth))],
            "annotations": objects,
            "categories": [{"id": kind} for kind in kinds],
            "info": {},
        }
        data.createIndex()
        evaluation = COCOeval(data, data.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


# what pycocotools 2.0.11 says of made(seed)
@pytest.mark.parametrize(
    ("seed", "value"), [(0, 0.3775855167395645), (1, 0.3753446816333047), (2, 0.2712065814041797)]
)
def test_the_value_is_that_of_pycocotools(seed: int, value: float) -> None:
    truth, found = made(seed)
    assert CocoMAP(truth, SIZES).score(found, range(12)).value == pytest.approx(value, abs=1e-9)


def test_many_values_are_those_of_pycocotools() -> None:
    for seed in range(10, 30):
        truth, found = made(seed)
        value = CocoMAP(truth, SIZES).score(found, range(12)).value
        assert value == pytest.approx(coco(truth, found), abs=1e-9)


def test_items_are_what_is_left_without_each_image() -> None:
    truth, found = made(4)
    metric = CocoMAP(truth, SIZES)
    score = metric.score(found, range(12))
    assert score.items is not None
    for left in range(12):
        rest = [number for number in range(12) if number != left]
        without = metric.score([found[number] for number in rest], rest).value
        assert score.items[left] == pytest.approx(12 * score.value - 11 * without)


def test_perfect_boxes_score_one_in_every_form_of_answer() -> None:
    truth = [Truth(np.array([[10.0, 20.0, 60.0, 50.0]]), np.array([7]), np.array([False]))]
    share = np.array([[10 / 120, 20 / 100, 60 / 120, 50 / 100]])
    centre = np.concatenate([(share[:, :2] + share[:, 2:]) / 2, share[:, 2:] - share[:, :2]], axis=1)[None]
    for classes, logits in ((2, np.array([[[0.0, 9.0, 0.0]]])), (3, np.array([[[-9.0, 9.0, -9.0]]]))):
        metric = CocoMAP(truth, [(100, 120)], {1: 7}, classes)
        rows = metric.predictions_from({"logits": logits, "pred_boxes": centre}, {})
        assert metric.score(rows, [0]).value == pytest.approx(1.0)
    plain = CocoMAP(truth, [(100, 120)])
    outputs = {
        "boxes": share[None] * [60, 50, 60, 50],
        "scores": np.array([[0.9]]),
        "labels": np.array([[7]]),
    }
    rows = plain.predictions_from(outputs, {"x": np.zeros((1, 3, 50, 60))})
    assert plain.score(rows, [0]).value == pytest.approx(1.0)


def test_what_cannot_be_scored_is_refused() -> None:
    nothing = Truth(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0, bool))
    metric = CocoMAP([nothing], [(10, 10)])
    with pytest.raises(EvaluationError, match="reads the outputs logits and pred_boxes"):
        metric.predictions_from({"output": np.zeros((1, 6))}, {})
    with pytest.raises(EvaluationError, match="hold no object"):
        metric.score([Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))], [0])
    with pytest.raises(EvaluationError, match="NaN"):
        metric.predictions_from({"logits": np.full((1, 1, 3), np.nan), "pred_boxes": np.zeros((1, 1, 4))}, {})
