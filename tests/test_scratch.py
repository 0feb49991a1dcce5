"""Folders that need not outlive their process: removed with it, and those of killed processes by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import octune
from octune.engine.isolation import Isolation
from octune.errors import OctuneError
from octune.scratch import Scratch, scratch, sweep


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's place for such folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def others(place: Path) -> list[Path]:
    return list((place / f"octune-{os.getuid()}").glob("*"))


def killed(place: Path) -> None:
    """What a process leaves that is killed while it uses such a folder."""
    code = """
import os, signal
from octune.scratch import Scratch
kept = Scratch()
(kept.path / "graph.pb").write_bytes(b"0" * 1000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(octune.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


def test_it_goes_with_its_block_and_with_its_object(place: Path) -> None:
    with scratch() as folder:
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o777 == 0o700
    kept = Scratch()
    path = kept.path
    assert others(place) == [path]
    del kept
    assert others(place) == []


def test_what_killed_processes_left_is_removed_and_nothing_else(place: Path) -> None:
    killed(place)
    left = others(place)
    assert len(left) == 1
    with scratch() as mine:
        sweep()
        assert others(place) == [mine]


def test_a_job_begins_with_that(place: Path) -> None:
    killed(place)
    with pytest.raises(OctuneError):
        octune.tune(config={"model": {"path": "model.onnx"}}, progress=False)
    assert others(place) == []


def test_a_process_that_was_asked_and_ended_leaves_nothing(place: Path) -> None:
    code = "from octune.scratch import Scratch; kept = Scratch(); print('there', flush=True); input()"
    environment = {**os.environ, "PYTHONPATH": str(Path(octune.__file__).parents[1])}
    isolation = Isolation(dict, lambda share: None)
    isolation._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by close()
    isolation._process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert isolation._process.stdout is not None
    assert isolation._process.stdout.readline() == b"there\n"
    assert len(others(place)) == 1
    isolation.close()
    assert others(place) == []


def test_a_fork_leaves_the_folder_to_its_parent(place: Path) -> None:
    kept = Scratch()
    child = os.fork()
    if child == 0:
        kept.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert kept.path.is_dir()
    kept.close()


def test_a_folder_that_others_can_write_to_is_not_used(place: Path) -> None:
    home = place / f"octune-{os.getuid()}"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    (home / "theirs").mkdir()
    sweep()
    with scratch() as folder:
        assert folder.parent == place
    assert others(place) == [home / "theirs"]
