"""Quantizing with plain arithmetic gives the bits that PyTorch's own kernel gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from octune.backends.torch import quantize
from octune.backends.torch.quantize import to_uint8

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="needs a CPU that multiplies and adds in one step",
)

scales = st.floats(1e-12, 1e6, width=64)
zero_points = st.integers(0, 255)
anything = arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False))
HUGE = np.array([np.inf, -np.inf, 3e38, -3e38, 2**31, -(2**31), 1e-45, -1e-45, 0.0, -0.0], np.float32)


@st.composite
def near_ties(draw: st.DrawFn) -> tuple[np.ndarray, float, int]:
    """Numbers that lie on a tie or within a few bits of one: there, every rounding on the way shows."""
    scale, zero_point = draw(scales), draw(zero_points)
    halves = draw(
        arrays(np.float64, st.integers(1, 40), elements=st.integers(-300, 300).map(lambda whole: whole + 0.5))
    )
    x = (halves * scale).astype(np.float32)
    steps = draw(arrays(np.int32, x.shape, elements=st.integers(-3, 3)))
    return (x.view(np.int32) + steps).view(np.float32), scale, zero_point


def formula(x: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    """x / scale + zero_point, multiplied with the inverse and added in one step of float32, then rounded to
    even and cut off.
    """
    with np.errstate(all="ignore"):
        # exact: 24 bits times 24 bits
        product = x.astype(np.float64) * np.float64(np.float32(1) / np.float32(scale))
        total = product + zero_point
        # The sum may have been rounded, and is rounded again to float32. That is as good as one rounding if
        # the first is to odd.
        added = total - product
        lost = (product - (total - added)) + (zero_point - added)
        to_odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
        total = np.where((lost != 0) & (total.view(np.int64) % 2 == 0), to_odd, total)
        return np.clip(np.rint(total.astype(np.float32)), 0, 255).astype(np.uint8)


def torch_kernel(x: torch.Tensor, scale: float, zero_point: int) -> torch.Tensor:
    if not hasattr(torch, "quantize_per_tensor"):
        pytest.skip("this version of torch has no quantized tensor types any more")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, scale, zero_point, torch.quint8).int_repr()


def quantized(x: torch.Tensor, scale: float, zero_point: int) -> torch.Tensor:
    """As a small tensor, and as a large one."""
    small = to_uint8(x, scale, zero_point)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "_SMALL", 0)
        assert torch.equal(to_uint8(x, scale, zero_point), small)
    return small


@settings(max_examples=300)
@given(near_ties())
@example((np.array([0.273939937], np.float32), 0.00214854861, 0))
def test_ties_fall_as_in_the_formula_and_in_torch(case: tuple[np.ndarray, float, int]) -> None:
    x, scale, zero_point = case
    q = quantized(torch.from_numpy(x), scale, zero_point)
    np.testing.assert_array_equal(q.numpy(), formula(x, scale, zero_point))
    assert torch.equal(q, torch_kernel(torch.from_numpy(x), scale, zero_point))


@settings(max_examples=300)
@given(anything, scales, zero_points)
@example(HUGE, 1e-12, 255)
@example(HUGE, 0.1, 128)
@example(HUGE, 1e6, 0)
def test_every_number_has_its_place(x: np.ndarray, scale: float, zero_point: int) -> None:
    q = quantized(torch.from_numpy(x), scale, zero_point)
    np.testing.assert_array_equal(q.numpy(), formula(x, scale, zero_point))
    assert torch.equal(q, torch_kernel(torch.from_numpy(x), scale, zero_point))


@settings(max_examples=50)
@given(
    shape=st.tuples(*[st.integers(1, 9)] * 4),
    dims=st.integers(1, 4),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
    piece=st.sampled_from([5, 64, quantize._PIECE]),
)
@example((2, 3, 4, 5), 4, torch.channels_last, 5)
@example((2, 3, 4, 5), 4, torch.channels_last, quantize._PIECE)
def test_the_result_lies_in_memory_as_the_input_does(
    shape: tuple[int, ...], dims: int, layout: torch.memory_format, piece: int
) -> None:
    x = torch.randn(shape[:dims])
    if dims == 4:
        x = x.contiguous(memory_format=layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "_PIECE", piece)
        q = quantized(x, 0.01, 100)
    assert q.dtype is torch.uint8
    assert q.stride() == x.stride()
    assert torch.equal(q, torch_kernel(x, 0.01, 100))


@pytest.mark.parametrize("piece", [5, quantize._PIECE])
def test_views_become_contiguous(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "_PIECE", piece)
    x = torch.randn(4, 6, 8)
    for view in (x.transpose(1, 2), x[:, 0], x[..., ::2], x[:, :1].expand(4, 6, 8)):
        q = quantized(view, 0.01, 100)
        assert q.is_contiguous()
        assert torch.equal(q, torch_kernel(view.contiguous(), 0.01, 100))


def test_many_threads_give_the_same() -> None:
    x = torch.randn(3, 70_001) * 50  # every thread has a remainder that does not fill a vector
    want, before = formula(x.numpy(), 0.7, 77), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            np.testing.assert_array_equal(to_uint8(x, 0.7, 77).numpy(), want)
    finally:
        torch.set_num_threads(before)


def test_it_works_in_every_mode_of_autograd_and_leaves_the_input_alone() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    want = formula(x.detach().numpy(), 0.02, 128)
    before = x.detach().clone()
    with torch.inference_mode():
        inside = to_uint8(x, 0.02, 128)
    for q in (
        inside,
        to_uint8(x * 1, 0.02, 128),
        to_uint8(x, torch.tensor(0.02, dtype=torch.float64), torch.tensor(128)),
    ):
        assert not q.requires_grad
        np.testing.assert_array_equal(q.numpy(), want)
    assert torch.equal(x, before)


def test_it_says_nothing_about_what_is_deprecated() -> None:
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            to_uint8(torch.randn(3, 4), 0.1, 3)
    finally:
        torch.set_warn_always(False)


class Quantizes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return to_uint8(x, 0.1, 3)


def test_it_is_exported_as_the_op_that_the_compiler_knows() -> None:
    program = torch.export.export(Quantizes(), (torch.randn(3, 4),))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["quantized_decomposed.quantize_per_tensor.default"]
