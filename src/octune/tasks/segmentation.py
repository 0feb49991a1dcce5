"""Semantic segmentation: images, and masks whose pixels are class numbers.

    task = load_segmentation("data/voc/VOC2012", processor=Path("models/segformer"))
    task.metric.name                        # "mean_iou"

Layouts: Pascal VOC's; ``images`` beside ``masks`` (or ``annotations``, ``labels``), each with ``train`` and
``val`` inside, or with files; ``train`` and ``val`` with ``images`` and ``masks`` inside. A mask has the name
of its image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octune.errors import DataError
from octune.evaluation.segmentation_metric import IGNORED, MeanIoU
from octune.tasks.batches import TaskData, TaskOptions, shuffled
from octune.tasks.images import ImageBatches, Preparing, parted, pixels

__all__ = ["load_segmentation"]

IMAGES, MASKS = ("images", "image", "imgs"), ("masks", "mask", "annotations", "labels", "segmentation")
TRAIN, VAL = ("train", "training"), ("val", "validation", "valid", "dev", "test")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
Pair = tuple[Path, Path]


def load_segmentation(
    folder: Path | str, *, processor: Path | None, options: TaskOptions | None = None
) -> TaskData:
    """Read a folder; see :func:`octune.tasks.load_task` for the options."""
    options, place = options or TaskOptions(), Path(folder)
    if not place.is_dir():
        raise DataError(f"The folder {place} does not exist. Expected one of images and masks.")
    preparing = Preparing.of(processor, options.size)
    judged = _pairs(place, (options.split,) if options.split else VAL)
    train = _pairs(place, TRAIN) if options.calibrates else []
    if not judged and not train and (everything := _matched(*_sides(place))):
        calibrating, judging = parted(len(everything))
        train, judged = ([everything[row] for row in rows] for rows in (calibrating, judging))
    for what, found in (("train", train), (options.split or "val", judged)):
        if not found and (options.calibrates or what != "train"):
            raise DataError(
                f"The folder {place} has no images with masks for {what}. Expected images/{what} and "
                f"masks/{what}, {what}/images and {what}/masks, Pascal VOC's folders, or images and masks "
                "without splits."
            )
    shown = [train[row] for row in shuffled(len(train), options.calibration_samples or 512)]

    def mask(file: Path) -> Any:
        classes = pixels(file, preparing.size, label=True)
        if preparing.without_background:
            classes = np.where(classes == 0, IGNORED, classes - 1)
            classes[classes == IGNORED - 1] = IGNORED
        return classes

    return TaskData(
        ImageBatches([a for a, _ in shown], preparing, lambda row: 0, options.calibration_batch_size),
        ImageBatches(
            [a for a, _ in judged], preparing, lambda row: mask(judged[row][1]), options.evaluation_batch_size
        ),
        MeanIoU(),
        f"mean IoU on {len(judged):,} images, calibration on {len(shown):,} others, {preparing}",
    )


def _pairs(folder: Path, splits: Sequence[str]) -> list[Pair]:
    """Images and masks of the first split that exists."""
    for split in splits:
        listed = folder / "ImageSets" / "Segmentation" / f"{split}.txt"
        if listed.is_file():
            names = listed.read_text().split()
            return [
                (folder / "JPEGImages" / f"{name}.jpg", folder / "SegmentationClass" / f"{name}.png")
                for name in names
            ]
        images, masks = _sides(folder)
        for pair in ((images, masks, split), (*_sides(folder / split), "")):
            one, other, inside = pair
            if one is None or other is None:
                continue
            if (one / inside).is_dir() and (found := _matched(one / inside, other / inside)):
                return found
    return []


def _sides(folder: Path) -> tuple[Path | None, Path | None]:
    images = next((folder / name for name in IMAGES if (folder / name).is_dir()), None)
    return images, next((folder / name for name in MASKS if (folder / name).is_dir()), None)


def _matched(images: Path | None, masks: Path | None) -> list[Pair]:
    """The images that have a mask of their name."""
    if images is None or masks is None or not masks.is_dir():
        return []
    known = {file.stem: file for file in masks.iterdir() if file.suffix.lower() in SUFFIXES}
    files = sorted(file for file in images.iterdir() if file.suffix.lower() in SUFFIXES)
    missing = [file.name for file in files if file.stem not in known]
    if missing and known:
        raise DataError(
            f"{masks} has no mask for {missing[0]} and {len(missing) - 1} others. Expected one for each."
        )
    return [(file, known[file.stem]) for file in files if file.stem in known]
