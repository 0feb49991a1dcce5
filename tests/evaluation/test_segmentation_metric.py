"""Mean IoU: scikit-learn's Jaccard score over all pixels, and what is left without each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score

from octune.backends.batches import Inputs
from octune.errors import ConfigError, EvaluationError
from octune.evaluation.metrics import get_metric
from octune.evaluation.segmentation_metric import MeanIoU, resized


def made(seed: int, images: int = 8) -> tuple[list[Any], list[Any]]:
    random = np.random.default_rng(seed)
    truth = [random.choice([0, 1, 2, 5, 255], (6, 7)) for _ in range(images)]
    said = [np.where(random.random((6, 7)) < 0.6, label, random.integers(0, 4, (6, 7))) for label in truth]
    return [np.where(row == 255, 3, row) for row in said], truth


@pytest.mark.parametrize("seed", range(5))
def test_the_value_is_that_of_scikit_learn(seed: int) -> None:
    said, truth = made(seed)
    valid = np.concatenate([label.ravel() != 255 for label in truth])
    flat = [np.concatenate([one.ravel() for one in some])[valid] for some in (truth, said)]
    assert MeanIoU().score(said, truth).value == pytest.approx(jaccard_score(*flat, average="macro"))


def test_items_are_what_is_left_without_each_image() -> None:
    said, truth = made(7)
    metric = get_metric("miou")
    score = metric.score(said, truth)
    assert score.items is not None
    for left in range(8):
        rest = [row for row in range(8) if row != left]
        without = metric.score([said[row] for row in rest], [truth[row] for row in rest]).value
        assert score.items[left] == pytest.approx(8 * score.value - 7 * without)


@pytest.mark.parametrize("size", [(8, 12), (16, 9), (3, 3), (4, 6)])
def test_maps_are_resized_as_pytorch_does(size: tuple[int, int]) -> None:
    maps = np.random.default_rng(0).normal(size=(5, 4, 6)).astype(np.float32)
    wanted = torch.nn.functional.interpolate(torch.from_numpy(maps)[None], size, mode="bilinear")[0]
    np.testing.assert_allclose(resized(maps, size), wanted.numpy(), atol=1e-5)


def test_logits_become_as_large_as_the_images() -> None:
    logits = np.zeros((2, 3, 4, 4), np.float32)
    logits[0, 1], logits[1, 2] = 1.0, 1.0
    rows = MeanIoU().predictions_from(
        {"loss": np.zeros(()), "logits": logits}, Inputs(kwargs={"pixel_values": np.zeros((2, 3, 8, 10))})
    )
    assert [row.shape for row in rows] == [(8, 10), (8, 10)]
    labels = [np.full((8, 10), 1), np.full((8, 10), 2)]
    assert MeanIoU().score(rows, labels).value == 1.0
    assert MeanIoU().score(list(logits), labels).value == 1.0  # without the images: as large as the labels


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(ConfigError, match="class number"):
        get_metric("mean_iou", ignore="void")
    metric = MeanIoU()
    with pytest.raises(EvaluationError, match="labels as large as the images"):
        metric.score([np.zeros((2, 2))], [np.zeros((3, 2), int)])
    with pytest.raises(EvaluationError, match="ignore every pixel"):
        metric.score([np.zeros((2, 2))], [np.full((2, 2), 255)])
    with pytest.raises(EvaluationError, match="labels below 0"):
        metric.score([np.zeros((2, 2))], [np.full((2, 2), -1)])
    with pytest.raises(EvaluationError, match="needs an output of shape"):
        metric.predictions({"logits": np.zeros((2, 3))})
    with pytest.raises(EvaluationError, match="NaN"):
        metric.predictions({"logits": np.full((2, 3, 2, 2), np.nan)})
