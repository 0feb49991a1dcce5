"""Observers: what streams through in parts is what was there in one piece."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octune.calibration import Observer, TensorStats
from octune.calibration.observer import BINS, SAMPLE

floats = st.floats(-1e4, 1e4, width=32, allow_nan=False, allow_subnormal=False)
arrays = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=floats
)
streams = st.lists(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.just(5)), elements=floats), min_size=1, max_size=6
)


def observe(*parts: np.ndarray, **how: object) -> TensorStats:
    observer = Observer()
    for part in parts:
        observer.update(part, **how)  # type: ignore[arg-type]
    stats = observer.stats()
    assert stats is not None
    return stats


@settings(max_examples=50)
@given(streams)
def test_streaming_equals_one_shot(parts: list[np.ndarray]) -> None:
    streamed, whole = observe(*parts), observe(np.concatenate(parts))
    assert (streamed.low, streamed.high) == (whole.low, whole.high)
    assert (streamed.low, streamed.high) == (
        float(np.concatenate(parts).min()),
        float(np.concatenate(parts).max()),
    )
    assert np.array_equal(streamed.channel_max, whole.channel_max)
    assert np.array_equal(streamed.channel_max, np.abs(np.concatenate(parts)).max(axis=0))
    assert streamed.channel_mean == pytest.approx(
        np.concatenate(parts).mean(axis=0, dtype=np.float64), rel=1e-4, abs=1e-2
    )
    assert streamed.counts.sum() == whole.counts.sum() == sum(part.size for part in parts)


@settings(max_examples=50)
@given(streams)
def test_widening_conserves_mass_and_moves_it_by_at_most_two_bins(parts: list[np.ndarray]) -> None:
    stats = observe(*parts)
    values = np.sort(np.concatenate([part.reshape(-1) for part in parts]).astype(np.float64))
    assert stats.edge >= np.abs(values).max()
    assert stats.counts.sum() == pytest.approx(values.size)
    # Every value lies in its own bin: the histogram, read back, is the sorted data to within a bin.
    width = 2 * stats.edge / BINS
    read_back = np.repeat(stats.centres, stats.counts.round().astype(int))
    assert np.abs(read_back - values).max() <= width * 1.001


def fed(parts: list[np.ndarray]) -> Observer:
    observer = Observer()
    for part in parts:
        observer.update(part)
    return observer


@settings(max_examples=100)
@given(streams, st.data())
def test_a_stream_in_parts_is_the_stream_to_the_bit(parts: list[np.ndarray], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=3)))
    merged = Observer()
    for start, end in pairwise([0, *cuts, len(parts)]):
        merged.merge(fed(parts[start:end]))
    expected, found = fed(parts).stats(), merged.stats()
    assert expected is not None
    assert found is not None
    for name in ("low", "high", "shape", "edge", "finite"):
        assert getattr(found, name) == getattr(expected, name)
    for name in ("counts", "channel_max", "channel_mean"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()


def test_sums_keep_what_rounding_drops() -> None:
    parts = [np.full((1, 1), value, np.float32) for value in (1e30, 3.0, -1e30, 4.0)]
    assert fed(parts).stats().channel_mean.tolist() == [1.75]  # type: ignore[union-attr]
    two, more = fed(parts[:2]), fed(parts[2:])
    two.merge(more)
    assert two.stats().channel_mean.tolist() == [1.75]  # type: ignore[union-attr]


def test_an_axis_that_changes_its_length_has_no_channels() -> None:
    parts = [np.ones((2, length), np.float32) for length in (3, 4, 3)]
    whole, parted = fed(parts), fed(parts[:1])
    parted.merge(fed(parts[1:]))
    for observer in (whole, parted):
        assert observer.stats().channel_max.size == 0  # type: ignore[union-attr]


@given(arrays, arrays)
def test_order_does_not_change_the_extremes(one: np.ndarray, other: np.ndarray) -> None:
    forth, back = (
        observe(one.reshape(-1, 1), other.reshape(-1, 1)),
        observe(other.reshape(-1, 1), one.reshape(-1, 1)),
    )
    assert (forth.low, forth.high) == (back.low, back.high)
    assert np.array_equal(forth.channel_max, back.channel_max)


def test_a_growing_stream_keeps_its_resolution() -> None:
    observer = Observer()
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1e-3, 1.0, 40.0):
        observer.update((scale * rng.standard_normal((64, 8))).astype(np.float32))
    stats = observer.stats()
    assert stats is not None
    assert stats.edge <= 2 * max(-stats.low, stats.high)
    assert stats.counts.sum() == 4 * 64 * 8


def test_large_batches_are_sampled_evenly_and_weighted() -> None:
    array = np.random.default_rng(0).standard_normal((3 * SAMPLE + 7,)).astype(np.float32)
    stats = observe(array)
    assert stats.counts.sum() == pytest.approx(array.size, rel=1e-4)
    assert (stats.low, stats.high) == (float(array.min()), float(array.max()))
    share = stats.counts[stats.centres < 0].sum() / stats.counts.sum()
    assert share == pytest.approx(0.5, abs=0.01)


def test_memory_is_constant() -> None:
    observer = Observer()
    for size in (10, 100, 10_000):
        observer.update(np.ones((size, 4), np.float32))
        stats = observer.stats()
        assert stats is not None
        assert stats.counts.shape == (BINS,)
        assert stats.channel_max.shape == (4,)


def test_stats_are_a_snapshot() -> None:
    observer = Observer()
    observer.update(np.ones((2, 2), np.float32))
    before = observer.stats()
    assert before is not None
    observer.update(np.full((2, 2), 9.0, np.float32))
    assert before.counts.sum() == 4
    assert before.channel_max.tolist() == [1.0, 1.0]


def test_the_channel_axis() -> None:
    image = np.zeros((2, 3, 4, 4), np.float32)
    image[:, 1] = -7
    assert observe(image, channel_axis=1).channel_max.tolist() == [0, 7, 0]


def test_the_largest_shape_is_kept_for_timing() -> None:
    observer = Observer()
    observer.update(np.ones((2, 5), np.float32), shape=(1, 4, 5))
    observer.update(np.ones((9, 5), np.float32), shape=(2, 6, 5))
    observer.touch((1, 2, 5))
    assert observer.stats().shape == (2, 6, 5)  # type: ignore[union-attr]


def test_inputs_that_need_no_range_are_only_touched() -> None:
    observer = Observer()
    observer.touch((2, 7))
    stats = observer.stats()
    assert stats is not None
    assert (stats.low, stats.high, stats.shape, stats.finite) == (0.0, 0.0, (2, 7), True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinite_input_is_noticed_and_does_not_spoil_the_rest(value: float) -> None:
    stats = observe(
        np.array([[1.0, -2.0]], np.float32),
        np.array([[value, 0.0]], np.float32),
        np.array([[3.0, 0.0]], np.float32),
    )
    assert not stats.finite
    assert (stats.low, stats.high) == (-2.0, 3.0)


def test_nothing_seen_is_none() -> None:
    assert Observer().stats() is None


def test_an_op_that_ran_on_nothing_was_not_seen() -> None:
    observer = Observer()
    observer.update(np.ones((0, 8), np.float32))  # an expert that got no token
    observer.update(np.ones((0, 8), np.float32), shape=(2, 4, 8))  # nothing but padding
    observer.touch((0, 8))
    assert observer.stats() is None
    observer.update(np.ones((1, 8), np.float32))
    assert observer.stats().shape == (1, 8)  # type: ignore[union-attr]


def test_the_largest_float32_has_a_place() -> None:
    top = float(np.finfo(np.float32).max)
    stats = observe(np.array([[-top, top, 0.0]], np.float32))
    assert stats.counts.sum() == 3
    assert (stats.low, stats.high) == (-top, top)


def test_zeros_alone() -> None:
    stats = observe(np.zeros((4, 4), np.float32))
    assert (stats.low, stats.high, stats.counts.sum()) == (0.0, 0.0, 16)
