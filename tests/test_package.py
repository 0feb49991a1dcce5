"""The wheel and the source archive, as users get them: built here, installed in a folder of their own, run
from another one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import octune
from tests.scripts import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]

CONF = """
model: {path: mine:network}
calibration: {data: mine:batches}
evaluation: {data: mine:batches, metric: accuracy}
performance: {compile: never}
"""
MINE = """
import torch

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

def batches():
    torch.manual_seed(1)
    images = [torch.randn(32, 16) for _ in range(8)]
    return [(x, network()(x).argmax(1)) for x in images]
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive of this checkout. The wheel is built from the archive's files."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder the wheel is installed in. What Octune depends on is taken from this environment."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(folder), str(archives[0])], check=True, capture_output=True, text=True)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Runs the installed command in an empty folder: ``run("tune", "conf.yaml")``."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = words if words[0] == sys.executable else (str(installed / "bin" / "octune"), *words)
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return call


def test_the_wheel_holds_the_whole_package_and_nothing_else(archives: tuple[Path, Path]) -> None:
    inside = {name for name in ZipFile(archives[0]).namelist() if ".dist-info/" not in name}
    listed = ["git", "-C", str(ROOT), "ls-files", "src/octune"]
    tracked = subprocess.run(listed, check=False, capture_output=True, text=True)
    if tracked.returncode != 0:
        pytest.skip("needs a git checkout, to know which files are the project's")
    expected = {name.removeprefix("src/") for name in tracked.stdout.split()}
    assert "octune/py.typed" in expected
    assert expected == inside


def test_the_source_archive_can_be_tested(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "README.md", "LICENSE", "CONTRIBUTING.md", "tests/conftest.py"} <= names
    assert {"docs/architecture.md", "examples/quickstart.py", "benchmarks/README.md"} <= names


def test_what_the_index_shows_is_true(archives: tuple[Path, Path]) -> None:
    with ZipFile(archives[0]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        data = Parser().parsestr(wheel.read(name).decode())
    assert data["Version"] == octune.__version__
    assert data["License-Expression"] == "Apache-2.0"
    assert {"all", "onnx", "report", "tensorflow", "torch"} <= set(data.get_all("Provides-Extra", []))
    # Every extra that a message tells the user to install is there.
    text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"octune\[(\w+)\]", text)) <= set(data.get_all("Provides-Extra", []))
    versions = [one[-4:] for one in data.get_all("Classifier", []) if "Python :: 3." in one]
    assert data["Requires-Python"] == f">={versions[0]}"


def test_help_version_and_schema(run: Run) -> None:
    assert run("--version").stdout.strip() == f"octune {octune.__version__}"
    assert "tune" in run("--help").stdout
    assert json.loads(run("config", "--schema").stdout)["properties"]["tuning"]


def test_the_package_is_the_installed_one(run: Run, installed: Path) -> None:
    where = run(sys.executable, "-c", "import octune; print(octune.__file__)").stdout.strip()
    assert Path(where) == installed / "octune" / "__init__.py"
    module = run(sys.executable, "-m", "octune", "--version")
    assert module.stdout == run("--version").stdout


@pytest.mark.slow
def test_doctor(run: Run) -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert "pytorch" in json.loads(done.stdout)["speed"]


@pytest.mark.slow
def test_tune_replay_report_and_load(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(CONF)
    (tmp_path / "mine.py").write_text(MINE)
    done = run("tune", "conf.yaml", "--workspace", "work", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["met"]
    assert json.loads(run("replay", "work", "--json").stdout)["met"]
    assert run("report", "work", "--output", "report.html").returncode == 0
    assert "</html>" in (tmp_path / "report.html").read_text()
    load = "import octune, mine; print(octune.load('work/model', factory=mine.network))"
    assert "Linear" in run(sys.executable, "-c", load).stdout
