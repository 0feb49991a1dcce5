"""The TensorFlow backend keeps the contract, for a frozen graph and for a Keras model."""

from __future__ import annotations

import pytest

from tests.backends.contract import BackendContract, Subject
from tests.backends.tensorflow.subjects import digits, graph_def, keras_model


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
