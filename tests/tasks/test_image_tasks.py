"""Folders of images with masks, and with boxes in COCO's json; and jobs from such a folder to a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.errors import ConfigError, DataError
from octune.tasks import load_task
from octune.tasks.images import Preparing

PIL = pytest.importorskip("PIL.Image")


def picture(file: Path, array: Any, mode: str | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    PIL.fromarray(np.asarray(array, np.uint8), mode).save(file)
    return file


def noise(seed: int, height: int = 20, width: int = 30) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3))


def mask(seed: int, classes: int = 3) -> Any:
    return np.random.default_rng(seed).integers(0, classes, (20, 30))


def images_and_masks(folder: Path, images: str, masks: str, count: int) -> None:
    for number in range(count):
        picture(folder / images / f"{number}.png", noise(number))
        picture(folder / masks / f"{number}.png", mask(number))


LAYOUTS = [
    [("images/train", "masks/train"), ("images/val", "masks/val")],
    [("images/training", "annotations/training"), ("images/validation", "annotations/validation")],
    [("train/images", "train/masks"), ("valid/images", "valid/labels")],
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_masks(tmp_path: Path, layout: list[tuple[str, str]]) -> None:
    for (images, masks), count in zip(layout, (5, 3), strict=True):
        images_and_masks(tmp_path, images, masks, count)
    task = load_task("segmentation", tmp_path, tokenizer=None, size=(20, 30), evaluation_batch_size=2)
    assert [len(labels) for _, labels in task.evaluation] == [2, 1]
    assert sum(len(labels) for _, labels in task.calibration) == 5
    inputs, labels = task.evaluation[0]
    assert (inputs.shape, inputs.dtype) == ((2, 3, 20, 30), np.float32)
    assert np.array_equal(labels[1], mask(1))
    red = (noise(0)[..., 0] / 255 - 0.485) / 0.229
    np.testing.assert_allclose(inputs[0, 0], red, atol=1e-5)
    assert "mean IoU on 3 images, calibration on 5 others, 20 x 30 pixels" in task.description
    assert task.metric.score(labels, labels).value == 1.0


def test_pascal_voc_and_folders_without_splits(tmp_path: Path) -> None:
    voc, plain = tmp_path / "voc", tmp_path / "plain"
    for number in range(3):
        picture(voc / "JPEGImages" / f"{number}.jpg", noise(number))
        picture(voc / "SegmentationClass" / f"{number}.png", mask(number))
    for split, names in (("train", "0\n1\n"), ("val", "2\n")):
        (voc / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
        (voc / "ImageSets" / "Segmentation" / f"{split}.txt").write_text(names)
    assert (
        "on 1 images, calibration on 2"
        in load_task("segmentation", voc, tokenizer=None, size=(8, 8)).description
    )
    images_and_masks(plain, "images", "masks", 10)
    task = load_task("segmentation", plain, tokenizer=None, size=(8, 8))
    assert "on 8 images, calibration on 2" in task.description


def test_a_processor_says_how_images_are_prepared(tmp_path: Path) -> None:
    images_and_masks(tmp_path, "images/val", "masks/val", 2)
    said = {
        "size": {"height": 10, "width": 12},
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "do_reduce_labels": True,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    task = load_task("segmentation", tmp_path, tokenizer=tmp_path, calibrates=False)
    inputs, labels = task.evaluation[0]
    assert inputs["pixel_values"].shape == (2, 3, 10, 12)
    assert set(np.unique(labels[0])) == {0, 1, 255}
    assert Preparing.of(tmp_path, (4, 4)).size == (4, 4)
    with pytest.raises(ConfigError, match=r"evaluation.data.size"):
        Preparing.of(None, None)
    said["size"] = {"longest_edge": 7}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="names no size that Octune can read"):
        Preparing.of(tmp_path, None)


def test_broken_folders_of_masks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images with masks for train"):
        load_task("segmentation", tmp_path, tokenizer=None, size=(8, 8))
    images_and_masks(tmp_path, "images/val", "masks/val", 2)
    (tmp_path / "masks/val/1.png").unlink()
    with pytest.raises(DataError, match=r"no mask for 1.png"):
        load_task("segmentation", tmp_path, tokenizer=None, size=(8, 8), calibrates=False)
    (tmp_path / "masks/val/1.png").write_text("no picture")
    task = load_task("segmentation", tmp_path, tokenizer=None, size=(8, 8), calibrates=False)
    with pytest.raises(DataError, match=r"1.png is not an image"):
        task.evaluation[0]


# -- detection -----------------------------------------------------------------------------------------------


def annotated(folder: Path, file: str, images: str, count: int = 3) -> Path:
    objects = []
    for number in range(count):
        picture(folder / images / f"{number}.jpg", noise(number))
        for box, kind in (([2, 3, 10, 8], 18), ([15, 5, 12, 12], 44)):
            objects.append({"image_id": number, "category_id": kind, "bbox": box, "iscrowd": 0, "area": 80})
    said = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "height": 20, "width": 30} for n in range(count)],
        "annotations": [{**one, "id": n} for n, one in enumerate(objects, start=1)],
        "categories": [{"id": 18, "name": "dog"}, {"id": 44, "name": "bottle"}],
    }
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(said))
    return folder / file


@pytest.mark.parametrize(
    "layout",
    [
        [
            ("annotations/instances_train2017.json", "train2017"),
            ("annotations/instances_val2017.json", "val2017"),
        ],
        [("train/_annotations.coco.json", "train"), ("valid/_annotations.coco.json", "valid")],
        [("annotations/train.json", "images/train"), ("annotations/val.json", "images/val")],
    ],
)
def test_layouts_of_boxes(tmp_path: Path, layout: list[tuple[str, str]]) -> None:
    for file, images in layout:
        annotated(tmp_path, file, images)
    names = {"dog": 0, "bottle": 1}
    task = load_task("detection", tmp_path, tokenizer=None, size=(16, 24), label2id=names)
    assert "2 of 2 categories are named by the model" in task.description
    inputs, labels = task.evaluation[0]
    assert inputs.shape == (3, 3, 16, 24)
    centres = np.array([[7 / 30, 7 / 20, 10 / 30, 8 / 20], [21 / 30, 11 / 20, 12 / 30, 12 / 20]])
    outputs = {
        "logits": np.tile([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]], (3, 1, 1)),
        "pred_boxes": np.tile(centres, (3, 1, 1)),
    }
    rows = task.metric.predictions_from(outputs, {"x": inputs})
    assert task.metric.score(rows, labels).value == pytest.approx(1.0)


def test_broken_folders_of_boxes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no annotations of val"):
        load_task("detection", tmp_path, tokenizer=None, size=(8, 8))
    file = annotated(tmp_path, "annotations/val.json", "elsewhere")
    with pytest.raises(DataError, match=r"0.jpg, which .*val.json names, is not in"):
        load_task("detection", tmp_path, tokenizer=None, size=(8, 8), calibrates=False)
    file.write_text("{}")
    with pytest.raises(DataError, match="not of COCO's form"):
        load_task("detection", tmp_path, tokenizer=None, size=(8, 8), calibrates=False)


# -- whole jobs ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segmentation", "detection"])
def test_a_model_of_images_is_tuned_from_two_folders(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from typer.testing import CliRunner

    from octune.cli import app

    torch.manual_seed(0)
    names = {"dog": 0, "bottle": 1}
    sizes = {"id2label": {number: name for name, number in names.items()}, "label2id": names}
    data, folder = tmp_path / "data", tmp_path / "model"
    if task == "segmentation":
        images_and_masks(data, "images/train", "masks/train", 16)
        images_and_masks(data, "images/val", "masks/val", 12)
        config = transformers.SegformerConfig(
            hidden_sizes=[16, 16, 32, 32], depths=[1] * 4, decoder_hidden_size=32, **sizes
        )
        transformers.SegformerForSemanticSegmentation(config).eval().save_pretrained(folder)
    else:
        annotated(data, "annotations/instances_train2017.json", "train2017", 16)
        annotated(data, "annotations/instances_val2017.json", "val2017", 12)
        config = transformers.YolosConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            image_size=[32, 48], num_detection_tokens=10, **sizes,
        )  # fmt: skip
        transformers.YolosForObjectDetection(config).eval().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 48}}))
    monkeypatch.chdir(tmp_path)
    Path("conf.yaml").write_text(
        "performance: {compile: never, iterations: 5}\ncriterion: {absolute: 0.5}\n"
        "evaluation: {batch_size: 6}\n"
    )
    words = ["tune", "conf.yaml", "--task", task, "--model", str(folder), "--data", str(data), "--json"]
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    report = json.loads(done.stdout)
    assert report["baseline"]["score"]["n"] == report["trials"][0]["score"]["n"] == 12
    assert report["trials"][0]["score"]["low"] <= report["trials"][0]["score"]["value"]
    assert report["coverage"]["multiply_adds"] > 0
