"""The ONNX backend keeps the contract, on a transformer and on a convolutional net."""

from __future__ import annotations

import pytest

from tests.backends.contract import BackendContract, Subject
from tests.backends.onnx.models import arrays, bert, cnn
from tests.backends.torch.models import image_batches, token_batches


class TestBert(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(bert(), arrays(token_batches()))


class TestCnn(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(cnn(), arrays(image_batches()))
