"""Images in batches, prepared as the model's own processor says.

    preparing = Preparing.of(Path("models/segformer"), size=None)
    batches = ImageBatches(files, preparing, labels, size=8)

What ``preprocessor_config.json`` says counts: size, mean, deviation. Without that file images are scaled to 0
to 1 and normalized by ImageNet's mean and deviation, as torchvision's models expect, and handed over as one
array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import ConfigError, DataError, MissingDependency
from octune.tasks.batches import shuffled

__all__ = ["ImageBatches", "Preparing", "parted", "pixels"]

CONFIG = "preprocessor_config.json"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
SHARE, MOST = 0.2, 512  # of the images calibrate, where there are no splits

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Preparing:
    """How an image becomes an input: its height and width, and ``value * scale``, minus a mean, over a
    deviation. ``name`` is the input's name, if there is one. ``without_background``: label 0 is not a class,
    and the others are one too high.
    """

    size: tuple[int, int]
    scale: float = 1 / 255
    mean: tuple[float, ...] = MEAN
    deviation: tuple[float, ...] = DEVIATION
    name: str | None = None
    without_background: bool = False

    @classmethod
    def of(cls, folder: Path | None, size: tuple[int, int] | None) -> Preparing:
        """What a folder says, or the usual; a size that was asked for wins."""
        file = None if folder is None else folder / CONFIG
        if file is None or not file.is_file():
            if size is None:
                raise ConfigError(
                    "It is not known how large images must be: the model's folder has no "
                    f"{CONFIG}. Give it: evaluation.data.size (and calibration.data.size), as [512, 512]."
                )
            return cls(size)
        try:
            said: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {error}.") from error
        scale = float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0
        normalizes = said.get("do_normalize", True)
        return cls(
            size or _size(said.get("size"), file),
            scale,
            tuple(said.get("image_mean") or MEAN) if normalizes else (0.0,) * 3,
            tuple(said.get("image_std") or DEVIATION) if normalizes else (1.0,) * 3,
            "pixel_values",
            bool(said.get("do_reduce_labels") or said.get("reduce_labels")),
        )

    def __call__(self, file: Path) -> Array:
        """One image as (channels, height, width)."""
        array = pixels(file, self.size) * np.float32(self.scale)
        made = (array - np.asarray(self.mean, np.float32)) / np.asarray(self.deviation, np.float32)
        return np.ascontiguousarray(made.transpose(2, 0, 1), dtype=np.float32)

    def __str__(self) -> str:
        return f"{self.size[0]} x {self.size[1]} pixels"


def _size(said: Any, file: Path) -> tuple[int, int]:
    if isinstance(said, int):
        return said, said
    if isinstance(said, Mapping):
        if {"height", "width"} <= set(said):
            return int(said["height"]), int(said["width"])
        if "shortest_edge" in said:  # all images of a batch must be equally large
            return int(said["shortest_edge"]), int(said["shortest_edge"])
    raise ConfigError(
        f"{file} names no size that Octune can read. Give it: evaluation.data.size, as [512, 512]."
    )


def pixels(file: Path, size: tuple[int, int], *, label: bool = False) -> Array:
    """An image as float32 RGB, or the class numbers of a mask, in this height and width."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependency("pillow", None, "Reading images") from error
    height, width = size
    try:
        with Image.open(file) as image:
            if label:
                plain = image if image.mode in ("P", "L", "I", "I;16", "1") else image.convert("L")
                return np.asarray(plain.resize((width, height), Image.Resampling.NEAREST)).astype(np.int32)
            made = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(made, dtype=np.float32)
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{file} is not an image that can be read: {error}.") from error


class ImageBatches(Sequence[Any]):
    """Batches of ``(inputs, labels)``; images are read when they are needed."""

    def __init__(
        self, files: Sequence[Path], preparing: Preparing, label: Callable[[int], Any], size: int
    ) -> None:
        self._files, self._preparing, self._label, self._size = files, preparing, label, size

    def __len__(self) -> int:
        return -(-len(self._files) // self._size)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows = range(len(self._files))[index * self._size : (index + 1) * self._size]
        images: Any = np.stack([self._preparing(self._files[row]) for row in rows])
        named = images if self._preparing.name is None else {self._preparing.name: images}
        return named, [self._label(row) for row in rows]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def about(self, index: int) -> Sequence[Mapping[str, Any]]:
        """The file of each item of a batch."""
        rows = range(len(self._files))[index * self._size : (index + 1) * self._size]
        return [{"row": row, "file": self._files[row].name} for row in rows]


def parted(count: int) -> tuple[list[int], list[int]]:
    """Rows that calibrate, and rows that judge, where nobody has split them."""
    order = [int(row) for row in shuffled(count)]
    calibrating = max(1, min(MOST, round(SHARE * count)))
    return order[:calibrating], sorted(order[calibrating:])
