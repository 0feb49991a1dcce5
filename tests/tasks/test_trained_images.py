"""Small networks that were trained to find shapes keep their mean IoU and average precision in int8."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octune
from octune.tasks import load_task
from tests.digits import config

torch = pytest.importorskip("torch")
PIL = pytest.importorskip("PIL.Image")
nn, F = torch.nn, torch.nn.functional

HEIGHT, WIDTH, STRIDE = 32, 48, 8
TRAIN, VAL = 160, 64
NAMES = ("square", "disc")


def scene(chance: np.random.Generator) -> tuple[Any, Any, list[tuple[int, list[int]]]]:
    """A noisy picture of a few shapes that do not touch, its mask, and class and box of every shape."""
    mask, objects = np.zeros((HEIGHT, WIDTH), np.uint8), []
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    for _ in range(3):
        kind, size = int(chance.integers(2)), int(chance.integers(8, 15))
        top, left = int(chance.integers(HEIGHT - size)), int(chance.integers(WIDTH - size))
        if mask[max(top - 2, 0) : top + size + 2, max(left - 2, 0) : left + size + 2].any():
            continue
        middle = (top + (size - 1) / 2, left + (size - 1) / 2)
        inside = (rows >= top) & (rows < top + size) & (columns >= left) & (columns < left + size)
        if kind:
            inside &= (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 <= (size / 2) ** 2
        mask[inside] = kind + 1
        objects.append((kind, [left, top, size, size]))
    paper, ink = chance.integers(150, 256, 3), chance.integers(0, 100, 3)
    picture = np.where(mask[..., None] > 0, ink, paper) + chance.normal(0, 12, (HEIGHT, WIDTH, 3))
    return np.clip(picture, 0, 255).astype(np.uint8), mask, objects


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with masks and with boxes, in the usual folders."""
    folder = tmp_path_factory.mktemp("shapes")
    chance = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("val", VAL)):
        images, annotations = [], []
        for place in (f"images/{split}", f"masks/{split}", "annotations"):
            (folder / place).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture, mask, objects = scene(chance)
            PIL.fromarray(picture).save(folder / f"images/{split}/{number:03}.png")
            PIL.fromarray(mask).save(folder / f"masks/{split}/{number:03}.png")
            images.append({"id": number, "file_name": f"{number:03}.png", "height": HEIGHT, "width": WIDTH})
            for kind, box in objects:
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": kind,
                        "bbox": box,
                        "area": box[2] * box[3],
                        "iscrowd": 0,
                    }
                )
        said = {"images": images, "annotations": annotations, "categories": [
            {"id": number, "name": name} for number, name in enumerate(NAMES)
        ]}  # fmt: skip
        (folder / f"annotations/{split}.json").write_text(json.dumps(said))
    return folder


def block(inputs: int, outputs: int, stride: int = 1) -> Any:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class UNet(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = block(3, 12), block(12, 24, 2), block(24, 48, 2)
        self.up, self.last = nn.ConvTranspose2d(48, 24, 2, 2), block(48, 24)
        self.end, self.head = block(36, 12), nn.Conv2d(12, 3, 1)

    def forward(self, x: Any) -> Any:
        first = self.first(x)
        second = self.second(first)
        third = self.last(torch.cat([self.up(self.third(second)), second], 1))
        return self.head(self.end(torch.cat([F.interpolate(third, scale_factor=2.0), first], 1)))


class Detector(nn.Module):  # type: ignore[misc, name-defined]
    """One query for every cell of a grid: what is centred there, and its box."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            block(3, 16), block(16, 32, 2), block(32, 48, 2), block(48, 64, 2), block(64, 64), block(64, 64)
        )
        self.classes, self.boxes = nn.Conv2d(64, 3, 1), nn.Conv2d(64, 4, 1)

    def forward(self, x: Any) -> dict[str, Any]:
        seen = self.body(x)
        logits, found = (part(seen).flatten(2).transpose(1, 2) for part in (self.classes, self.boxes))
        rows, columns = HEIGHT // STRIDE, WIDTH // STRIDE
        grid = torch.stack(
            torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1
        ).reshape(1, -1, 2)
        centre = (grid + found[..., :2].sigmoid()) / torch.tensor([columns, rows])
        return {"logits": logits, "pred_boxes": torch.cat([centre, found[..., 2:].sigmoid()], -1)}


def trained(model: Any, images: Any, loss: Callable[[Any, Any], Any], steps: int, rate: float = 1e-2) -> Any:
    """Trained on pictures; ``loss`` gets what the model answers, and to which of them."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for step in range(steps):
        rows = torch.arange(16 * step, 16 * step + 16) % len(images)
        optimizer.zero_grad()
        loss(model(images[rows]), rows).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def training(task: str, folder: Path) -> tuple[Any, Any]:
    """All training pictures as the task prepares them, and their labels."""
    batches = load_task(
        task, folder, tokenizer=None, size=(HEIGHT, WIDTH), split="train", calibrates=False,
        evaluation_batch_size=TRAIN,
    ).evaluation  # fmt: skip
    images, labels = batches[0]
    return torch.from_numpy(np.asarray(images)), labels


def tuned(model: Any, task: str, folder: Path, criterion: str, **options: Any) -> octune.Result:
    data = load_task(task, folder, tokenizer=None, size=(HEIGHT, WIDTH), **options)
    return octune.tune(
        model, calibration=data.calibration, evaluation=data.evaluation, metric=data.metric,
        criterion=criterion, config=config(), progress=False,
    )  # fmt: skip


def judged(result: octune.Result, least: float, kept: float) -> None:
    """It has learned what it should, and int8 kept it."""
    fp32, int8 = result.baseline.score, result.best.score
    assert fp32 is not None
    assert int8 is not None
    assert result.coverage is not None
    assert fp32.value > least
    assert result.met
    assert int8.value >= kept * fp32.value
    assert fp32.n == int8.n == VAL
    assert result.coverage.int8 > 0.5


@pytest.mark.slow
def test_a_trained_unet_keeps_its_mean_iou(shapes: Path) -> None:
    images, masks = training("segmentation", shapes)
    wanted = torch.from_numpy(np.stack(masks).astype(np.int64))
    torch.manual_seed(0)
    model = trained(UNet(), images, lambda said, rows: F.cross_entropy(said, wanted[rows]), 120)
    judged(tuned(model, "segmentation", shapes, "2%"), 0.7, 0.98)


@pytest.mark.slow
def test_a_trained_detector_keeps_its_average_precision(shapes: Path) -> None:
    images, _ = training("detection", shapes)
    said = json.loads((shapes / "annotations/train.json").read_text())
    rows, columns = HEIGHT // STRIDE, WIDTH // STRIDE
    kinds = torch.full((TRAIN, rows * columns), len(NAMES))
    boxes = torch.zeros(TRAIN, rows * columns, 4)
    for one in said["annotations"]:
        left, top, width, height = one["bbox"]
        centre = (left + width / 2) / WIDTH, (top + height / 2) / HEIGHT
        cell = int(centre[1] * rows) * columns + int(centre[0] * columns)
        kinds[one["image_id"], cell] = one["category_id"]
        boxes[one["image_id"], cell] = torch.tensor([*centre, width / WIDTH, height / HEIGHT])

    def loss(found: dict[str, Any], of: Any) -> Any:
        there = kinds[of] < len(NAMES)
        apart = F.l1_loss(found["pred_boxes"][there], boxes[of][there])
        return F.cross_entropy(found["logits"].flatten(0, 1), kinds[of].flatten()) + 10 * apart

    torch.manual_seed(0)
    model = trained(Detector(), images, loss, 200, 5e-3)
    names = {name: number for number, name in enumerate(NAMES)}
    judged(tuned(model, "detection", shapes, "5%", label2id=names), 0.25, 0.95)
