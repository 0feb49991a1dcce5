"""The PyTorch backend keeps the contract, on a transformer and on a convolutional net."""

from __future__ import annotations

import pytest

from tests.backends.contract import BackendContract, Subject
from tests.backends.torch.models import SmallCnn, image_batches, small_cnn, tiny_bert, token_batches


class TestBert(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(tiny_bert(), token_batches())


class TestCnn(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return Subject(small_cnn(), image_batches(), SmallCnn)
