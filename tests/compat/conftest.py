"""Where the founding documents are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SHARED


@pytest.fixture(scope="session")
def documents() -> Path:
    """The folder of iLiT's and LPOT's documents beside the checkout; tests that run their code skip without
    it.
    """
    folder = SHARED / "seeds"
    if not folder.is_dir():
        pytest.skip(f"needs the founding documents in {SHARED.name}/{folder.name}/ beside the checkout")
    return folder
