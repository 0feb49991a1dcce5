"""Runs to report on, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import octune
from tests.digits import config, digits


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> octune.Result:
    """A small real run with ops that are timed, three trials of a random search, and a workspace."""
    folder: Path = tmp_path_factory.mktemp("finished") / "run"
    data, options = digits(), config(strategy="random", max_trials=3, timeout=60)
    options["tuning"]["objective"] = "performance"
    return octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluation=data.labelled(),
        metric="accuracy",
        config={**options, "workspace": {"path": str(folder)}},
    )
