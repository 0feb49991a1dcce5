"""The TensorFlow backend keeps the contract, for a frozen graph, a Keras model and a convolutional net."""

from __future__ import annotations

import pytest

from tests.backends.contract import BackendContract, Subject
from tests.backends.tensorflow.subjects import digits, graph_def, images, keras_model, small_cnn


class TestFrozenGraph(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(graph_def(), digits().batches())


class TestKeras(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(keras_model(), digits().batches())


class TestCnn(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(small_cnn(), images())
