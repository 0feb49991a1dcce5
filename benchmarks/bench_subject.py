"""A model with inputs to time it on, whatever its framework. Inputs are numpy arrays by name.

subject = text("minilm", "MiniLM", model, ("input_ids", "attention_mask", "token_type_ids"))
subject.inputs("b8 s128"), subject.calibration
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

__all__ = ["Inputs", "Subject", "images", "pixels", "text", "tokens"]

Inputs = dict[str, Any]
INPUT_SEED, CALIBRATION_SEED = 1, 2
CALIBRATION_BATCHES = 4
VOCABULARY, POSITIONS = 30522, 512
HUGGING_FACE = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Subject:
    """One model with the shapes it is timed on; ``draw(shape, seed)`` makes inputs. ``free`` names the
    dimensions without a fixed size.
    """

    name: str
    title: str
    model: Any
    shapes: Mapping[str, tuple[int, ...]]
    draw: Callable[[tuple[int, ...], int], Inputs]
    batch: tuple[int, ...]
    free: Mapping[int, tuple[str, int, int]]

    @property
    def is_text(self) -> bool:
        """Whether inputs have a length besides their number."""
        return len(self.free) > 1

    def inputs(self, shape: str) -> Inputs:
        """What the model is timed on; the same for all contenders."""
        return self.draw(self.shapes[shape], INPUT_SEED)

    def batches(self, count: int, seed: int) -> list[Inputs]:
        """Batches that no contender is timed on; another seed makes others."""
        return [self.draw(self.batch, 1000 * seed + number) for number in range(count)]

    @property
    def calibration(self) -> list[Inputs]:
        """What all contenders are calibrated on."""
        return self.batches(CALIBRATION_BATCHES, CALIBRATION_SEED)


def text(
    name: str, title: str, model: Any, names: tuple[str, ...] = HUGGING_FACE, dtype: type = np.int64
) -> Subject:
    """A BERT of any size; ``names`` are its inputs for words, mask and segments."""
    shapes = {"b1 s128": (1, 128), "b8 s128": (8, 128), "b1 s384": (1, 384)}
    free = {0: ("batch", 1, 1024), 1: ("tokens", 2, POSITIONS)}
    return Subject(name, title, model, shapes, partial(tokens, names=names, dtype=dtype), (8, 128), free)


def images(name: str, title: str, model: Any) -> Subject:
    """An image network."""
    shapes = {"b1 224x224": (1, 3, 224, 224), "b8 224x224": (8, 3, 224, 224)}
    return Subject(name, title, model, shapes, pixels, (8, 3, 224, 224), {0: ("batch", 1, 1024)})


def tokens(
    shape: tuple[int, ...], seed: int, names: tuple[str, ...] = HUGGING_FACE, dtype: type = np.int64
) -> Inputs:
    """Random words, none of them padding."""
    ids = np.random.default_rng(seed).integers(1000, VOCABULARY, shape, dtype=dtype)
    return dict(zip(names, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))


def pixels(shape: tuple[int, ...], seed: int) -> Inputs:
    """Random images."""
    return {"pixel_values": np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)}
