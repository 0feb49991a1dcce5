"""The examples run: the quickstart in a process of its own, and every YAML file is a configuration that can
be used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octune.config import load_config
from octune.search import STRATEGIES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


CONFIGURATIONS = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.parent.name != "cluster")


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_yaml_file_loads(path: Path) -> None:
    config = load_config(path)
    assert config.model is not None
    assert config.tuning.strategy in STRATEGIES
    if path.name == "sst2.yaml":  # runs from the file alone
        assert config.model.path
        assert config.evaluation.data is not None


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "digits-int8"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py"), "--output", str(output)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("criterion met")
    assert "loaded again, it returns the same answers: True" in done.stdout
    assert {"model.safetensors", "octune.json"} <= {path.name for path in output.iterdir()}
