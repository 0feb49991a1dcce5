"""TensorFlow's int8 kernels never overflow, on any CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

from octune.backends.tensorflow.int8.kinds.conv import GROUPS
from octune.errors import PlanError
from octune.int8 import Limit
from octune.machine import pretending, probe_machine
from octune.plan import Scheme
from tests.backends.saturation import CONV, CONV_OF_OTHER_RANKS, LINEAR, NEW_CPU, Array, ExactSums, Shape

OFFERED = [shape for shape in LINEAR + CONV if shape.groups <= GROUPS or shape.groups == shape.inputs]
OFFERED += [shape for shape in CONV_OF_OTHER_RANKS if shape.rank == 3 and shape.groups == 1]


class TestTensorFlow(ExactSums):
    schemes = (*ExactSums.schemes, Scheme.int8("dynamic"))
    rounds_convolutions = True

    @pytest.fixture(params=OFFERED, ids=str)
    def shape(self, request: pytest.FixtureRequest) -> Shape:
        return request.param

    def build(self, shape: Shape, weight: Array) -> tf.Graph:
        with tf.Graph().as_default() as graph:
            if not shape.kernel:
                x = tf.compat.v1.placeholder(tf.float32, [None, shape.inputs], name="x")
                tf.matmul(x, tf.constant(weight.T.copy()), name="y")
                return graph
            if shape.rank == 3:  # int8 where the sizes are known
                sizes = [shape.kernel + 3] * 3
                x = tf.compat.v1.placeholder(tf.float32, [None, *sizes, shape.inputs], name="x")
                tf.nn.conv3d(
                    x, tf.constant(weight.transpose(2, 3, 4, 1, 0).copy()), [1] * 5, "VALID", name="y"
                )
                return graph
            x = tf.compat.v1.placeholder(tf.float32, [None, None, None, shape.inputs], name="x")
            if shape.groups < shape.inputs:
                tf.nn.conv2d(x, tf.constant(weight.transpose(2, 3, 1, 0).copy()), 1, "VALID", name="y")
            else:
                kernels = weight.reshape(shape.inputs, -1, shape.kernel, shape.kernel).transpose(2, 3, 0, 1)
                tf.nn.depthwise_conv2d(x, tf.constant(kernels.copy()), [1, 1, 1, 1], "VALID", name="y")
        return graph

    def batch(self, x: Array) -> dict[str, Array]:
        return {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))}

    def channels_first(self, y: Array) -> Array:
        return np.moveaxis(y, -1, 1)

    def grids(self, shape: Shape, scheme: Scheme) -> Sequence[tuple[int, int]]:
        """Around zero, convolutions and what is quantized at run time read int8 without -128."""
        symmetric = shape.kernel or scheme.mode == "dynamic"
        return (0, 255), ((-127, 127) if symmetric else (-128, 127))

    def calibrated(self, shape: Shape, grid: tuple[int, int]) -> float:
        """The int8 levels of a convolution reach half a level beyond those of uint8."""
        return 255 / 256 if shape.kernel and grid[0] < 0 else 1.0

    def limit(self, shape: Shape, low: int) -> Limit:
        return Limit.EVEN if shape.kernel and low < 0 else Limit.PAIRS

    def test_weights_of_8_bits_overflow_where_they_must(self) -> None:
        if probe_machine().exact_int8:
            super().test_weights_of_8_bits_overflow_where_they_must()
        else:  # every op is compared with fp32 before it is offered, so that one is not
            with pretending(NEW_CPU), pytest.raises(PlanError, match="int8 static"):
                self.errors(LINEAR[0], LINEAR[0].weight(0, 0.2), Scheme.int8(), (0, 255), portable=False)
