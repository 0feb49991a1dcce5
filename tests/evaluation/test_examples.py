"""Answers that flipped, as people look at them."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from octune.evaluation.examples import flipped, picture, words
from octune.evaluation.metrics import Answer
from octune.score import Score


def hits(*values: int) -> Score:
    return Score.from_items(values, hits=values)


def test_lost_answers_come_first_and_gained_ones_are_not_forgotten() -> None:
    assert flipped(hits(1, 1, 0, 0), hits(1, 0, 1, 0)) == [1, 2]
    many = flipped(hits(*[1] * 30, *[0] * 30), hits(*[0] * 30, *[1] * 30), most=12)
    assert many == [*range(8), *range(30, 34)]
    assert flipped(hits(1, 1), hits(1, 1)) == []
    assert flipped(Score.of(0.5), hits(1, 0)) == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(0, [0.0, 0.0], 1), "0 (50%)"),
        (Answer(1, [-20.0, 20.0], 1), "1 (100%)"),
        (Answer(3.14159, 3.14159, 3.0), "3.142"),
        (Answer(7, None, 7), "7"),
        (Answer("a text", None, ["a text"]), "a text"),
        (Answer("", None, []), "(no answer)"),
        (Answer(["x", "y", "x"], None, None), "x / y"),
    ],
)
def test_answers_in_words(answer: Answer, said: str) -> None:
    assert words(answer) == said


@pytest.mark.parametrize("shape", [(3, 100, 80), (1, 28, 28), (100, 80, 3), (16, 16, 1)])
def test_images_become_small_pictures(shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    array = np.random.default_rng(0).normal(size=shape)
    drawn = image.open(io.BytesIO(base64.b64decode(picture(array).removeprefix("data:image/png;base64,"))))
    assert max(drawn.size) <= 64
    pixels = np.asarray(drawn)
    assert (pixels.min(), pixels.max()) == (0, 255)


@pytest.mark.parametrize("shape", [(64,), (12, 768), (4, 5, 6), (3, 4, 4)])
def test_other_arrays_do_not(shape: tuple[int, ...]) -> None:
    assert picture(np.zeros(shape)) == ""
