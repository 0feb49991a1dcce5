"""int8 weights: close to the floats they stand for, and small enough where pairs of products are added in 16
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from octune.int8 import (
    ANYWHERE,
    NEEDS_EXACT,
    Int8Weight,
    Limit,
    by_output,
    limit_for,
    limited_again,
    quantize_weight,
)
from octune.machine import Machine, pretending
from tests.machines import AMX, AVX2, VNNI
from tests.pairs import largest_pairs

Array = np.ndarray[Any, np.dtype[Any]]
STEPS = {Limit.NONE: 1, Limit.PAIRS: 1, Limit.EVEN: 2}
GRANULARITIES = ("per_channel", "per_tensor")

shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
)


@st.composite
def weights(draw: st.DrawFn) -> Array:
    """Linear layers and convolutions with an even or odd number of inputs; outputs of any size, some of them
    zero.
    """
    shape = draw(shapes)
    numbers = draw(arrays.arrays(np.float32, shape, elements=st.floats(-1, 1, width=32)))
    sizes = draw(
        st.lists(st.sampled_from((0.0, 1e-30, 1e-3, 1.0, 1e30)), min_size=shape[0], max_size=shape[0])
    )
    return np.asarray(numbers * by_output(np.array(sizes, np.float32), len(shape)), np.float32)


@given(weights(), st.sampled_from(GRANULARITIES))
@example(np.array([[1.0, 1.0]], np.float32), "per_channel")
@example(np.array([[0.5, 0.0, 0.5], [1.0, 0.0, -1.0]], np.float32), "per_channel")
# an odd number of inputs at two positions
@example(np.array([[[[1.0, 1.0]], [[0.0, 0.0]], [[0.0, 0.0]]]], np.float32), "per_channel")
def test_no_two_neighbours_of_one_sign_add_up_to_more_than_128(weight: Array, granularity: str) -> None:
    assert largest_pairs(quantize_weight(weight, granularity, Limit.PAIRS).values).max() <= 128


@given(weights(), st.sampled_from(GRANULARITIES))
def test_even_weights_are_even(weight: Array, granularity: str) -> None:
    values = quantize_weight(weight, granularity, Limit.EVEN).values
    assert not (values % 2).any()
    assert np.abs(values.astype(int)).max() <= 126


@given(weights())
def test_without_a_limit_every_output_uses_all_8_bits(weight: Array) -> None:
    flat = np.abs(
        quantize_weight(weight, "per_channel", Limit.NONE).values.reshape(len(weight), -1).astype(int)
    ).max(axis=1)
    # What is next to nothing is nothing: its scale would be no normal number.
    peaks = np.abs(weight.reshape(len(weight), -1)).max(axis=1)
    assert (flat[peaks > 1e-35] == 127).all()
    assert set(flat) <= {0, 127}


@given(weights(), st.sampled_from(GRANULARITIES), st.sampled_from(list(Limit)))
def test_no_weight_is_off_by_more_than_half_a_step(weight: Array, granularity: str, limit: Limit) -> None:
    made = quantize_weight(weight, granularity, limit)
    assert made.values.dtype == np.int8
    assert made.values.shape == weight.shape
    assert made.scales.dtype == np.float32
    assert made.scales.shape == ((len(weight),) if granularity == "per_channel" else (1,))
    assert (made.scales > 0).all()
    half = 0.5 * STEPS[limit] * by_output(made.scales.astype(np.float64), weight.ndim)
    assert (np.abs(made.dequantized().astype(np.float64) - weight) <= half * (1 + 1e-4)).all()


@given(weights(), st.sampled_from(list(Limit)))
def test_one_scale_for_all_is_that_of_the_largest(weight: Array, limit: Limit) -> None:
    # an output that is as good as zero has a scale of 1
    assume(((weight == 0) | (np.abs(weight) > 1e-30)).all())
    scales = quantize_weight(weight, "per_channel", limit).scales
    (scale,) = quantize_weight(weight, "per_tensor", limit).scales
    used = np.abs(weight.reshape(len(weight), -1)).max(axis=1) > 0
    assert scale == (scales[used].max() if used.any() else scales.max())


@pytest.mark.parametrize("limit", Limit)
def test_outputs_that_are_zero_stay_zero(limit: Limit) -> None:
    weight = np.zeros((3, 4), np.float32)
    weight[1] = 0.5
    made = quantize_weight(weight, "per_channel", limit)
    assert np.isfinite(made.scales).all()
    assert (made.dequantized() == 0).all(axis=1).tolist() == [True, False, True]


@given(weights(), st.sampled_from(GRANULARITIES))
def test_weights_are_limited_again_where_they_must_be_and_nowhere_else(
    weight: Array, granularity: str
) -> None:
    full = quantize_weight(weight, granularity, Limit.NONE)
    again = limited_again(full)
    safe = largest_pairs(full.values) <= 128
    assert np.array_equal(again.values[safe], full.values[safe])
    assert np.array_equal(again.scales[safe], np.broadcast_to(full.scales, len(weight))[safe])
    assert largest_pairs(again.values).max() <= 128
    half = 0.5 * by_output(again.scales.astype(np.float64), weight.ndim)
    assert (np.abs(again.dequantized().astype(np.float64) - full.dequantized()) <= half * (1 + 1e-4)).all()


def test_limiting_again_does_something() -> None:
    full = Int8Weight(np.array([[127, 127], [127, -127], [1, 127]], np.int8), np.array([0.5], np.float32))
    again = limited_again(full)
    assert again.values[1:].tolist() == full.values[1:].tolist()
    assert again.values[0].tolist() == [64, 64]
    np.testing.assert_allclose(again.dequantized(), full.dequantized(), rtol=0.01)


@pytest.mark.parametrize("shape", [(256, 768), (64, 64, 3, 3), (64, 3, 7, 7)])
def test_pairs_cost_less_than_the_eighth_bit(shape: tuple[int, ...]) -> None:
    """That would be safe, too: 255 * 64 * 2 fits into 16 bits."""
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    made = quantize_weight(weight, "per_channel", Limit.PAIRS)
    seven_bits = by_output(np.abs(weight.reshape(len(weight), -1)).max(axis=1) / 64, weight.ndim)
    errors = [
        np.square(floats - weight).mean()
        for floats in (made.dequantized(), np.rint(weight / seven_bits) * seven_bits)
    ]
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.parametrize(
    ("machine", "portable", "limit"),
    [
        (AVX2, True, Limit.PAIRS),
        (AVX2, False, Limit.PAIRS),
        (VNNI, True, Limit.PAIRS),
        (VNNI, False, Limit.NONE),
        (AMX, False, Limit.NONE),
    ],
)
def test_weights_are_limited_for_travel_and_for_old_cpus(
    machine: Machine, portable: bool, limit: Limit
) -> None:
    with pretending(machine):
        assert limit_for(portable=portable) is limit
    assert limit.safe_on == (NEEDS_EXACT if limit is Limit.NONE else ANYWHERE)
