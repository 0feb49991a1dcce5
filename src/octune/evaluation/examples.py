"""Items that a person may want to look at: what was asked, what fp32 and int8 answered, what is right.

    numbers = flipped(baseline, score)              # items that one got right and the other did not
    evaluator.examples((fp32, int8), pairing, numbers, backend.rows)

They are few, and are run again by themselves: scoring keeps no answers.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octune.score import Score

if TYPE_CHECKING:
    from octune.evaluation.metrics import Answer

__all__ = ["MOST", "Example", "Models", "flipped", "picture", "words"]

Models = tuple[Any, Any]  # fp32, and the one it is compared with
MOST = 12  # a page to look at, not a data set
SIDE = 64  # pixels
LONGEST = 600  # characters


@dataclass(frozen=True, slots=True)
class Example:
    """One item. Answers are told in words; ``text`` or ``image`` (a PNG as a data URI) is what was asked,
    where that can be shown.
    """

    item: int
    label: str
    fp32: str
    int8: str
    text: str = ""
    image: str = ""

    @classmethod
    def of(
        cls, item: int, fp32: Answer, int8: Answer, about: Mapping[str, Any], arrays: Sequence[Any]
    ) -> Example:
        """An item, by what two models answer to it, what is known of it, and the arrays of its input."""
        images = [picture(np.asarray(array)[0]) for array in arrays if array.ndim > 2]
        return cls(
            item,
            shown(int8.label),
            words(fp32),
            words(int8),
            shown(about.get("text")),
            images[0] if len(images) == 1 else "",
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def flipped(baseline: Score, score: Score, most: int = MOST) -> list[int]:
    """Items that flipped, by number: what was lost first, and a few that were gained."""
    if baseline.hits is None or score.hits is None or baseline.hits.shape != score.hits.shape:
        return []
    lost = np.flatnonzero(baseline.hits > score.hits).tolist()
    gained = np.flatnonzero(baseline.hits < score.hits).tolist()
    few = min(len(gained), max(most // 3, most - len(lost)))
    return [*lost[: most - few], *gained[:few]]


def words(answer: Answer) -> str:
    """An answer as a person reads it; with logits, also how sure they are."""
    output = answer.output
    if not isinstance(output, list) or not isinstance(answer.said, int):
        return shown(answer.said)
    logits = np.asarray(output, dtype=np.float64)
    chances = np.exp(logits - logits.max())
    return f"{answer.said} ({chances[answer.said] / chances.sum():.0%})"


def shown(value: Any) -> str:
    """A label or an answer as text."""
    if isinstance(value, list | tuple):
        return " / ".join(dict.fromkeys(map(shown, value)))[:LONGEST]
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return "" if value is None else str(value)[:LONGEST] or "(no answer)"


def picture(array: npt.NDArray[Any]) -> str:
    """One row of an input as a small PNG, if it looks like an image: (channels, height, width) or (height,
    width, channels) of one or three channels. Else an empty string.
    """
    if array.ndim == 3 and array.shape[0] in (1, 3) and min(array.shape[1:]) >= 8:
        array = np.moveaxis(array, 0, -1)
    if array.ndim != 3 or array.shape[-1] not in (1, 3) or min(array.shape[:2]) < 8:
        return ""
    step = -(-max(array.shape[:2]) // SIDE)
    small = array[::step, ::step].astype(np.float64)
    low, high = small.min(), small.max()
    if not np.isfinite(high - low):
        return ""
    # How inputs were normalised is not known here: the darkest is shown black, the brightest white.
    pixels = np.round(255 * (small - low) / (high - low or 1.0)).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
