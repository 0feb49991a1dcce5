"""Fixtures of the tests that run a whole job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.digits import Digits, digits


@pytest.fixture(scope="module")
def data() -> Iterator[Digits]:
    """The digits and a network that reads them, in one thread: it is too small for more."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield digits()
    torch.set_num_threads(threads)
