"""Object detection: images, and boxes in a json file of COCO's form.

    task = load_detection("data/coco", processor=Path("models/detr"))
    task.metric.name                        # "coco_map"

Layouts: ``annotations/instances_val2017.json`` with ``val2017``, as COCO has it, or
``val/_annotations.coco.json`` among its images; the same with other splits (train, valid, test) and years.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octune.errors import DataError
from octune.evaluation.detection_metric import CocoMAP, Truth
from octune.tasks.batches import TaskData, TaskOptions, shuffled
from octune.tasks.images import ImageBatches, Preparing

__all__ = ["load_detection"]

TRAIN, VAL = ("train",), ("val", "valid", "validation", "test")


def load_detection(
    folder: Path | str, *, processor: Path | None, options: TaskOptions | None = None
) -> TaskData:
    """Read a folder; see :func:`octune.tasks.load_task` for the options."""
    options, place = options or TaskOptions(), Path(folder)
    if not place.is_dir():
        raise DataError(f"The folder {place} does not exist. Expected one with annotations and images.")
    preparing = Preparing.of(processor, options.size)
    file = _annotations(place, (options.split,) if options.split else VAL)
    said = _read(file)
    images = sorted(said["images"], key=lambda image: image["id"])
    files = _files(place, file, images)
    sizes = [(int(image["height"]), int(image["width"])) for image in images]
    shown = _calibration(place, options) if options.calibrates else []
    categories, classes, numbering = _categories(said["categories"], options.label2id)
    return TaskData(
        ImageBatches(shown, preparing, lambda row: 0, options.calibration_batch_size),
        ImageBatches(files, preparing, lambda row: row, options.evaluation_batch_size),
        CocoMAP(_truth(said["annotations"], images), sizes, categories, classes),
        f"COCO's average precision on {len(files):,} images of {file.name}, calibration on {len(shown):,} "
        f"training images, {preparing}; {numbering}",
    )


def _calibration(place: Path, options: TaskOptions) -> list[Path]:
    file = _annotations(place, TRAIN)
    files = _files(place, file, _read(file)["images"])
    return [files[row] for row in shuffled(len(files), options.calibration_samples or 512)]


def _annotations(folder: Path, splits: Sequence[str]) -> Path:
    for split in splits:
        for pattern in (
            f"annotations/instances_{split}*.json",
            f"annotations/{split}*.json",
            f"{split}/_annotations.coco.json",
            f"{split}.json",
        ):
            if found := sorted(folder.glob(pattern)):
                return found[0]
    raise DataError(
        f"The folder {folder} has no annotations of {splits[0]}. Expected "
        f"annotations/instances_{splits[0]}2017.json, or {splits[0]}/_annotations.coco.json."
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        said = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}.") from error
    wanted = {"images", "annotations", "categories"}
    if not isinstance(said, dict) or not wanted <= set(said) or not said["images"]:
        raise DataError(f"{file} is not of COCO's form. Expected images, annotations and categories.")
    return said


def _files(folder: Path, file: Path, images: Sequence[Mapping[str, Any]]) -> list[Path]:
    split = re.sub(r"^instances_", "", file.stem)
    places = [file.parent, folder / split, folder / "images" / split, folder / "images", folder]
    first = str(images[0]["file_name"])
    place = next((one for one in places if (one / first).is_file()), None)
    if place is None:
        raise DataError(f"{first}, which {file} names, is not in {', '.join(map(str, places))}.")
    return [place / str(image["file_name"]) for image in images]


def _truth(annotations: Sequence[Mapping[str, Any]], images: Sequence[Mapping[str, Any]]) -> list[Truth]:
    own: dict[Any, list[Mapping[str, Any]]] = {image["id"]: [] for image in images}
    for one in annotations:
        if one["image_id"] in own:
            own[one["image_id"]].append(one)
    found = []
    for objects in own.values():
        boxes = np.array([one["bbox"] for one in objects], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        kinds = np.array([one["category_id"] for one in objects], np.int64)
        crowd = np.array([bool(one.get("iscrowd")) for one in objects], bool)
        found.append(Truth(boxes, kinds, crowd))
    return found


def _categories(
    categories: Sequence[Mapping[str, Any]], label2id: Mapping[str, int] | None
) -> tuple[dict[int, int] | None, int | None, str]:
    """The category of each class of the model, how many classes it names, and where that comes from."""
    if not label2id:
        return None, None, "class numbers are taken for category ids"
    ids = {str(one["name"]).lower(): int(one["id"]) for one in categories}
    found = {int(number): ids[name.lower()] for name, number in label2id.items() if name.lower() in ids}
    if not found:
        said = "the model names none of the categories, so its class numbers are taken for category ids"
        return None, len(label2id), said
    return found, len(label2id), f"{len(found)} of {len(ids)} categories are named by the model"
