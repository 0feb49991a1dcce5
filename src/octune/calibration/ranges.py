"""From statistics to the range that an activation is quantized in.

ranges = Ranges({"layer.query": stats})
low, high = choose_range(ranges["layer.query"], "mse")
grid = Grid.affine(low, high)
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octune.archives import check_archive
from octune.calibration.observer import BINS, TensorStats
from octune.errors import WorkspaceError
from octune.folders import write_whole
from octune.int8 import Grid
from octune.plain_json import loads
from octune.plan import RangeMethod

__all__ = ["Ranges", "choose_range"]

PERCENTILE = 1e-4
_SHRINKS = [float(shrink) for shrink in np.linspace(1.0, 0.3, 57)]


def choose_range(stats: TensorStats, method: RangeMethod) -> tuple[float, float]:
    """The range of an activation by one of the methods of the field. It is looked for once, however many
    schemes ask.
    """
    if method not in stats.chosen:
        stats.chosen[method] = _chosen(stats, method)
    return stats.chosen[method]


def _chosen(stats: TensorStats, method: RangeMethod) -> tuple[float, float]:
    full = (min(stats.low, 0.0), max(stats.high, 0.0))
    if method == "minmax" or stats.counts.sum() == 0:
        return full
    if method == "percentile":
        return _percentile(stats, full)
    return _clipped(stats, full, _squared_error if method == "mse" else _divergence)


def _clipped(
    stats: TensorStats, full: tuple[float, float], measure: Callable[[TensorStats, float, float], float]
) -> tuple[float, float]:
    """The range with the least value of a measure: both ends drawn in together, then each by itself, since
    outliers are often on one side.
    """
    lows, highs = [full[0] * shrink for shrink in _SHRINKS], [full[1] * shrink for shrink in _SHRINKS]
    low, high = min(zip(lows, highs, strict=True), key=lambda ends: measure(stats, *ends))
    high = min([high, *highs], key=lambda end: measure(stats, low, end))
    low = min([low, *lows], key=lambda end: measure(stats, end, high))
    return low, high


def _percentile(stats: TensorStats, full: tuple[float, float]) -> tuple[float, float]:
    shares = np.cumsum(stats.counts) / stats.counts.sum()
    edges = np.linspace(-stats.edge, stats.edge, BINS + 1)
    low = edges[int(np.searchsorted(shares, PERCENTILE, side="right"))]
    high = edges[min(BINS, int(np.searchsorted(shares, 1 - PERCENTILE)) + 1)]
    return max(full[0], min(float(low), 0.0)), min(full[1], max(float(high), 0.0))


def _squared_error(stats: TensorStats, low: float, high: float) -> float:
    # Rounding inside a bin is practically uniform, so its part is scale^2 / 12; clipping is read off the bin
    # centres.
    scale = Grid.affine(low, high).scale
    centres = stats.centres
    clipped = np.clip(centres, low, high)
    return float(
        np.dot(stats.counts, (centres - clipped) ** 2 + np.where(centres == clipped, scale**2 / 12, 0.0))
    )


def _divergence(stats: TensorStats, low: float, high: float) -> float:
    """Kullback-Leibler divergence between the histogram and its int8 image spread back over the same bins."""
    centres = stats.centres
    # The exact zeros of a ReLU say nothing about where to clip, and would drown everything else.
    # They are in one of the two bins that touch zero, whose centres lie half a bin from it.
    counts = np.where(np.abs(centres) < 1.5 * stats.edge / BINS, 0.0, stats.counts)
    used = counts > 0
    if not used.any():
        return 0.0
    levels = Grid.affine(low, high).quantize(centres)
    mass = np.bincount(levels, weights=counts)
    width = np.bincount(levels, weights=used.astype(np.float64))
    image = np.where(used, mass[levels] / np.maximum(width[levels], 1), 0.0)
    # Values outside the range are counted where they are clipped to, so mass piles up on the last level.
    inside = (centres >= low) & (centres <= high)
    image = np.where(inside | ~used, image, image * 1e-3)
    p, q = counts[used] / counts[used].sum(), image[used] / max(float(image[used].sum()), 1e-300)
    return float(np.sum(p * np.log(p / np.maximum(q, 1e-300))))


class Ranges(Mapping[str, TensorStats]):
    """What calibration learned, by op name. Saved with the run, so that no trial and no resumed run
    calibrates again.
    """

    def __init__(self, stats: Mapping[str, TensorStats] | None = None, samples: int = 0) -> None:
        self._stats = dict(stats or {})
        self.samples = samples

    def __getitem__(self, name: str) -> TensorStats:
        return self._stats[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)

    def to_bytes(self) -> bytes:
        """The content of an ``.npz`` file."""
        names = list(self._stats)
        scalars = [
            {
                "name": n,
                "low": s.low,
                "high": s.high,
                "edge": s.edge,
                "shape": list(s.shape),
                "finite": s.finite,
            }
            for n, s in self._stats.items()
        ]
        header = json.dumps({"samples": self.samples, "ops": scalars}).encode()
        arrays: dict[str, npt.NDArray[np.generic]] = {"header": np.frombuffer(header, dtype=np.uint8)}
        for index, name in enumerate(names):
            arrays[f"counts{index}"] = self._stats[name].counts
            arrays[f"channels{index}"] = self._stats[name].channel_max
            arrays[f"means{index}"] = self._stats[name].channel_mean
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write one ``.npz`` file; a crash leaves either the old file or the new one."""
        write_whole(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Ranges:
        """The inverse of :meth:`save`."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise WorkspaceError(f"The ranges in {path} cannot be read ({error}).") from error
        return cls.from_bytes(content, path)

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> Ranges:
        """The inverse of :meth:`to_bytes`; ``path`` is where it was read, for messages."""
        try:
            check_archive(path, WorkspaceError, content)
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                header = loads(bytes(file["header"]))
                stats = {
                    op["name"]: TensorStats(
                        op["low"],
                        op["high"],
                        tuple(op["shape"]),
                        file[f"counts{i}"],
                        op["edge"],
                        file[f"channels{i}"],
                        op["finite"],
                        file[f"means{i}"],
                    )
                    for i, op in enumerate(header["ops"])
                }
        except Exception as error:  # zip, zlib and NumPy's header each have their own
            raise WorkspaceError(
                f"The ranges in {path} cannot be read ({error}). Delete the file to calibrate again."
            ) from error
        return cls(stats, header["samples"])
