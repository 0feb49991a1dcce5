"""Range methods."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octune.calibration import Observer, Ranges, TensorStats, choose_range
from octune.calibration.ranges import _divergence, _squared_error
from octune.errors import WorkspaceError
from octune.int8 import Grid

METHODS = ("minmax", "percentile", "mse", "kl")
arrays = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 30), st.integers(1, 8)),
    elements=st.floats(-1e5, 1e5, width=32, allow_nan=False),
)


def stats_of(array: np.ndarray) -> TensorStats:
    observer = Observer()
    observer.update(array.astype(np.float32))
    stats = observer.stats()
    assert stats is not None
    return stats


# -- range methods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=30)
@given(array=arrays)
def test_every_range_holds_zero_and_stays_inside_minmax(method: str, array: np.ndarray) -> None:
    stats = stats_of(array)
    low, high = choose_range(stats, method)  # type: ignore[arg-type]
    assert low <= 0.0 <= high
    assert min(stats.low, 0.0) <= low
    assert high <= max(stats.high, 0.0)


@given(arrays)
def test_minmax_is_exact(array: np.ndarray) -> None:
    assert choose_range(stats_of(array), "minmax") == (
        min(float(array.min()), 0.0),
        max(float(array.max()), 0.0),
    )


@settings(max_examples=30)
@given(arrays)
def test_mse_and_kl_are_never_worse_than_minmax_in_their_own_measure(array: np.ndarray) -> None:
    stats = stats_of(array)
    full = choose_range(stats, "minmax")
    assert _squared_error(stats, *choose_range(stats, "mse")) <= _squared_error(stats, *full)
    assert _divergence(stats, *choose_range(stats, "kl")) <= _divergence(stats, *full)


def with_outliers(scale: float = 1.0) -> np.ndarray:
    array = np.random.default_rng(0).standard_normal((2000, 64))
    array[0, :2] = 60.0, -60.0
    return scale * array


@pytest.mark.parametrize("method", ["percentile", "mse", "kl"])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_outliers_are_clipped_at_every_scale(method: str, scale: float) -> None:
    low, high = choose_range(stats_of(with_outliers(scale)), method)  # type: ignore[arg-type]
    assert -50 * scale < low < -2 * scale
    assert 2 * scale < high < 50 * scale


def test_mse_lowers_the_real_error_on_real_looking_data() -> None:
    array = with_outliers()[:, 2:]
    array[0, 0] = 20.0
    stats = stats_of(array)

    def error(method: str) -> float:
        return float(np.mean((Grid.affine(*choose_range(stats, method)).round_trip(array) - array) ** 2))  # type: ignore[arg-type]

    assert error("mse") < 0.9 * error("minmax")


def test_an_outlier_on_one_side_costs_the_other_side_nothing() -> None:
    array = np.random.default_rng(0).uniform(-1, 1, (60_000, 1))
    array[0] = 4.0
    low, high = choose_range(stats_of(array), "mse")
    assert low < -0.98
    assert high < 3.9


@pytest.mark.parametrize("method", METHODS)
def test_well_spread_data_is_hardly_clipped(method: str) -> None:
    array = np.random.default_rng(1).uniform(-1, 1, (2000, 16))
    low, high = choose_range(stats_of(array), method)  # type: ignore[arg-type]
    assert low < -0.9
    assert high > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_the_zeros_of_a_relu_do_not_close_the_range(method: str) -> None:
    array = np.maximum(np.random.default_rng(2).standard_normal((3000, 32)) - 1.5, 0.0)
    low, high = choose_range(stats_of(array), method)  # type: ignore[arg-type]
    assert low == 0.0
    assert high > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_zeros_alone_have_the_empty_range(method: str) -> None:
    assert choose_range(stats_of(np.zeros((4, 4))), method) == (0.0, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_an_op_without_values_has_the_empty_range(method: str) -> None:
    observer = Observer()
    observer.touch((2, 3))
    assert choose_range(observer.stats(), method) == (0.0, 0.0)  # type: ignore[arg-type]


# -- ranges on disk ------------------------------------------------------------------------------------------


def some_ranges() -> Ranges:
    rng = np.random.default_rng(0)
    embedding = Observer()
    embedding.touch((2, 7))
    names = {f"layer.{i}/ä": stats_of(rng.standard_normal((6, 4)) * 10.0**i) for i in range(3)}
    return Ranges({**names, "embedding": embedding.stats()}, samples=128)  # type: ignore[dict-item]


def test_save_and_load(tmp_path: Path) -> None:
    ranges = some_ranges()
    ranges.save(tmp_path / "ranges.npz")
    again = Ranges.load(tmp_path / "ranges.npz")
    assert again.samples == 128
    assert list(again) == list(ranges)
    for name, stats in ranges.items():
        found = again[name]
        assert (found.low, found.high, found.shape, found.edge, found.finite) == (
            stats.low,
            stats.high,
            stats.shape,
            stats.edge,
            stats.finite,
        )
        assert np.array_equal(found.counts, stats.counts)
        assert np.array_equal(found.channel_max, stats.channel_max)
        assert np.array_equal(found.channel_mean, stats.channel_mean)
        for method in METHODS:
            assert choose_range(found, method) == choose_range(stats, method)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["ranges.npz"]


def test_a_damaged_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "ranges.npz"
    some_ranges().save(path)
    content = path.read_bytes()
    for length in {*range(0, len(content), max(1, len(content) // 60)), len(content) - 1}:
        path.write_bytes(content[:length])
        with pytest.raises(WorkspaceError, match="Delete the file to calibrate again"):
            Ranges.load(path)


def test_a_flipped_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "ranges.npz"
    ranges = some_ranges()
    ranges.save(path)
    content = path.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            again = Ranges.load(path)
        except WorkspaceError:
            continue
        assert {name: (s.low, s.high) for name, s in again.items()} == {
            name: (s.low, s.high) for name, s in ranges.items()
        }


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranges.npz"
    np.savez(path, header=np.frombuffer(json.dumps([1]).encode(), dtype=np.uint8))
    with pytest.raises(WorkspaceError):
        Ranges.load(path)
    with pytest.raises(WorkspaceError):
        Ranges.load(tmp_path / "none.npz")


def test_ranges_are_a_mapping() -> None:
    ranges = some_ranges()
    assert len(ranges) == 4
    assert "embedding" in ranges
    assert "other" not in ranges
    assert Ranges().samples == 0
