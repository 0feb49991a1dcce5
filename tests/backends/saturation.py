"""Sums of 8-bit products are exact, whatever the inputs: on this CPU, and on those that add pairs of products
in 16 bits.

A backend's tests subclass :class:`ExactSums`, and say how a model of one op is built and run. It is fed, for
every output of the op, the inputs that would overflow first: the largest number wherever the output's weight
is positive and the smallest elsewhere, and the reverse. tests/end_to_end/test_other_cpus.py runs these tests
once more, on the kernels that older CPUs run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octune.backends import Backend, Settings, backend_for
from octune.calibration import collect
from octune.int8 import Int8Weight, Limit, quantize_weight
from octune.machine import Machine, pretending, probe_machine
from octune.plan import Plan, Scheme

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Shape:
    """A linear op, or a convolution with a kernel of equal sides."""

    inputs: int
    outputs: int
    kernel: int = 0
    groups: int = 1
    rank: int = 2  # dimensions of the image

    def weight(self, seed: int, tail: float) -> Array:
        """Random weights; the larger ``tail``, the more they are alike but for a few."""
        random = np.random.default_rng(seed)
        shape = (self.outputs, self.inputs // self.groups, *[self.kernel] * (self.rank if self.kernel else 0))
        numbers = random.uniform(-1, 1, shape)
        return (
            np.sign(numbers)
            * np.abs(numbers) ** tail
            * random.uniform(0.1, 10, (self.outputs, *[1] * (len(shape) - 1)))
        ).astype(np.float32)

    def worst_inputs(self, values: Array, low: int, high: int) -> Array:
        """For every output and sign the inputs that make its sum as large as can be; images have room for a
        few windows.
        """
        rows = []
        for output in range(min(self.outputs, 24)):
            for sign in (1, -1):
                pattern = np.where(sign * values[output] > 0, high, low)
                if not self.kernel:
                    rows.append(pattern)
                    continue
                first = output // (self.outputs // self.groups) * (self.inputs // self.groups)
                image = np.zeros((self.inputs, *[self.kernel + 3] * self.rank))
                image[slice(first, first + len(pattern)), *[slice(self.kernel)] * self.rank] = pattern
                rows.append(image)
        return np.stack(rows).astype(np.float32)

    def sums(self, x: Array, made: Int8Weight) -> tuple[Array, Array]:
        """What the op gives for integer inputs, in float64, and what the absolute values of the products add
        up to.
        """
        values, scales = (
            made.values.astype(np.float64),
            np.broadcast_to(made.scales, made.values.shape[:1]).astype(np.float64),
        )
        if not self.kernel:
            return x @ values.T * scales, np.abs(x) @ np.abs(values.T) * scales
        windows = np.lib.stride_tricks.sliding_window_view(
            x, (self.kernel,) * self.rank, axis=tuple(range(2, 2 + self.rank))
        )
        sizes = windows.shape[2 : 2 + self.rank]
        parts = windows.reshape(len(x), self.groups, -1, math.prod(sizes), self.kernel**self.rank)
        kernels = values.reshape(self.groups, -1, values.shape[1], self.kernel**self.rank)
        together = [
            np.einsum("bgcwk,gock->bgow", p, k).reshape(len(x), self.outputs, *sizes)
            for p, k in ((parts, kernels), (np.abs(parts), np.abs(kernels)))
        ]
        scales = scales.reshape(-1, *[1] * self.rank)
        return together[0] * scales, together[1] * scales


LINEAR = (Shape(768, 24), Shape(64, 24), Shape(63, 17), Shape(5, 8), Shape(2, 4), Shape(1, 4))
CONV = (
    Shape(64, 24, 3), Shape(64, 24, 1), Shape(33, 16, 1), Shape(33, 16, 3), Shape(3, 16, 7), Shape(3, 16,
    3), Shape(1, 8, 3), Shape(2, 8, 3), Shape(32, 32, 3, 32), Shape(24, 24, 5, 24), Shape(32, 64, 3, 32),
    Shape(64, 32, 3, 4), Shape(48, 16, 3, 16),
)  # fmt: skip
CONV_OF_OTHER_RANKS = (
    Shape(64, 24, 3, rank=1), Shape(33, 16, 3, rank=1), Shape(1, 8, 5, rank=1), Shape(32, 32, 9, 32, rank=1),
    Shape(64, 32, 5, 4, rank=1), Shape(32, 24, 3, rank=3), Shape(33, 16, 1, rank=3), Shape(3, 16, 3, rank=3),
    Shape(1, 8, 3, rank=3), Shape(16, 16, 3, 16, rank=3), Shape(32, 16, 3, 4, rank=3),
)  # fmt: skip
NEW_CPU = Machine("a CPU with VNNI", "x86_64", 2, ("avx2", "avx512f", "avx512_vnni"), None)


class ExactSums:
    """Subclass it, and say how a model is built."""

    schemes: ClassVar[tuple[Scheme, ...]] = (Scheme.int8(), Scheme.int8(granularity="per_tensor"))
    rounds_convolutions = False  # whether what a convolution gives is quantized again
    examples: ClassVar[int] = 3

    def build(self, shape: Shape, weight: Array) -> Any:
        """A model of the framework that is this op and nothing else, for a batch as :meth:`batch` lays it
        out.
        """
        raise NotImplementedError

    def batch(self, x: Array) -> Any:
        """Inputs of (rows, channels) or (rows, channels, height, width) as the model takes them."""
        return x

    def models(self, backend: Backend, plan: Plan, ranges: Any, inputs: Any) -> list[Any]:
        """All forms of a plan that are to be exact."""
        return [backend.apply(plan, ranges)]

    def channels_first(self, y: Array) -> Array:
        """An output laid out as (rows, channels, height, width)."""
        return y

    def grids(self, shape: Shape, scheme: Scheme) -> Sequence[tuple[int, int]]:
        """The integers that inputs are fed on: those that the op itself reads them as, or rounding them
        would look like a sum that overflows.
        """
        return (0, 255), (-128, 127)

    def calibrated(self, shape: Shape, grid: tuple[int, int]) -> float:
        """Calibration must see inputs this many times as large for the levels to be those integers."""
        return 1.0

    def limit(self, shape: Shape, low: int) -> Limit:
        """What weights must keep to."""
        return Limit.PAIRS

    def errors(
        self, shape: Shape, weight: Array, scheme: Scheme, grid: tuple[int, int], *, portable: bool = True
    ) -> list[float]:
        """How far the sums of each form are off, in units of what rounding to float explains."""
        made = quantize_weight(
            weight, scheme.granularity, self.limit(shape, grid[0]) if portable else Limit.NONE
        )
        x = shape.worst_inputs(made.values, *grid)
        wanted, size = shape.sums(x.astype(np.float64), made)
        backend = backend_for(self.build(shape, weight), Settings(portable=portable))
        (op,) = [op for op in backend.ops() if op.can("int8")]
        inputs = backend.split(self.batch(x))[0]
        backend.prepare(inputs)
        stretch = self.calibrated(shape, grid)
        ranges = collect(backend, [backend.split(self.batch(x * np.float32(stretch)))[0]], 1)
        allowed = 2e-6 * size
        if shape.kernel and self.rounds_convolutions:
            # Half a level of its range, which is that of fp32: beyond it there is none.
            fp32 = shape.sums(x.astype(np.float64), Int8Weight(weight, np.ones(1, np.float32)))[0]
            outside = np.abs(wanted - fp32 * stretch)
            allowed = allowed + 0.51 * np.abs(wanted).max() / 127 + outside
        found = []
        for model in self.models(backend, Plan({op.name: scheme}), ranges, inputs):
            (y,) = backend.run(model, inputs).values()
            found.append(
                float(
                    (
                        np.abs((self.channels_first(y) if shape.kernel else y) - wanted)
                        / np.maximum(allowed, 1e-30)
                    ).max()
                )
            )
        backend.close()
        return found

    @pytest.fixture
    def shape(self, request: pytest.FixtureRequest) -> Shape:
        raise NotImplementedError

    def test_no_input_overflows(self, shape: Shape) -> None:
        schemes = [scheme for scheme in self.schemes if not scheme.is_dynamic or not shape.kernel]
        cases = [(scheme, grid) for scheme in schemes for grid in self.grids(shape, scheme)]

        @settings(max_examples=self.examples, derandomize=True, database=None)
        @given(
            seed=st.integers(0, 2**32 - 1),
            tail=st.sampled_from((0.2, 1.0, 4.0)),
            case=st.sampled_from(cases),
        )
        def exact(seed: int, tail: float, case: tuple[Scheme, tuple[int, int]]) -> None:
            scheme, grid = case
            errors = self.errors(shape, shape.weight(seed, tail), scheme, grid)
            assert max(errors) <= 1, f"{shape} {scheme} on {grid}: {errors}"

        for case in cases:  # each at least once
            exact = example(seed=0, tail=0.2, case=case)(exact)
        exact()

    def test_weights_of_8_bits_overflow_where_they_must(self) -> None:
        """Or else the test above shows nothing."""
        shape = LINEAR[0]
        with pretending(NEW_CPU):
            errors = self.errors(shape, shape.weight(0, 0.2), self.schemes[0], (0, 255), portable=False)
        if probe_machine().exact_int8 or self.exact_anyway():
            assert max(errors) <= 1
        else:
            assert min(errors) > 100

    def exact_anyway(self) -> bool:
        """Whether the kernels do not keep to what this process may use: some read the CPU themselves."""
        return False
