"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of fine-tuned models and data sets beside the checkout; tests that need it skip without it."""
    if not (SHARED / "models").is_dir():
        pytest.skip(f"needs the fine-tuned models and data sets in {SHARED.name}/ beside the checkout")
    return SHARED
