"""Faults are injected for real: processes are killed, disks are full, folders vanish, numbers are not finite.
In the end nothing that was finished is lost, nothing stays behind, and the next start comes to the same
winner.
"""

from __future__ import annotations

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import octune
from octune.errors import ArtifactError, OctuneError
from octune.folders import complete_or_absent, write_whole
from tests.scripts import ROOT, load_script

jobs = load_script("benchmarks/fault_jobs.py")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/faults.py, whose neighbours are modules beside it."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import faults as script  # type: ignore[import-not-found]  # it is not part of the package

    return script


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fault_model", raising=False)
    return tmp_path


def waits(folder: Path, event: str, process: subprocess.Popen[Any]) -> None:
    """Until the journal in a workspace has a record of that kind."""
    deadline = time.monotonic() + 120
    while event not in {record["event"] for record in jobs.journal(folder)}:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


# -- processes -----------------------------------------------------------------------------------------------


def test_killed_at_random_moments(faults: Any, tmp_path: Path) -> None:
    """A few; the command has hundreds, on all backends."""
    pytest.importorskip("onnx")
    outcome = faults.Outcome()
    faults.killed(tmp_path, "onnx", 4, random.Random(5), outcome, kinds=["trials"])
    assert outcome.clean, outcome
    assert sum(outcome.kills.values()) == 4


def test_the_command_sees_what_is_done_again(faults: Any, tmp_path: Path) -> None:
    (tmp_path / "calls.txt").write_text("1 9 fp32\n1 9 a\n1 9 b\n2 9 fp32\n2 9 b\n2 9 c\n")
    assert faults.repeated(tmp_path, tmp_path) == 0, "the last one of a process may have been under way"
    with (tmp_path / "calls.txt").open("a") as file:
        file.write("3 9 a\n")
    assert faults.repeated(tmp_path, tmp_path) == 1
    line = json.dumps({"event": "trial", "form": "eager", "digest": "x", "samples": 1, "answer": {}}) + "\n"
    (tmp_path / "journal.jsonl").write_text(2 * line)
    assert faults.repeated(tmp_path, tmp_path) == 2


@pytest.mark.parametrize(("signals", "code"), [(["SIGTERM"], 143), (["SIGHUP"], 129), (["SIGINT"] * 2, 130)])
def test_a_signal_ends_it_in_order(inside: Path, signals: list[str], code: int) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx")
    process = jobs.start(inside, "tune", "conf.yaml", "--workspace", "ws", "--json", SLOW="1.5")
    waits(inside / "ws", "begun", process)
    for name in signals:
        process.send_signal(getattr(signal, name))
        time.sleep(0.05)
    _, errors = process.communicate(timeout=60)
    # A second Ctrl-C may hit Python when the command has ended; a shell calls that 130 as well.
    assert process.returncode in (code, -signal.SIGINT if code == 130 else code), errors
    assert "octune resume ws" in errors
    assert "Traceback" not in errors
    assert not (inside / "ws" / "model").exists()
    resumed = jobs.start(inside, "resume", "ws", "--json")
    output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 1, errors
    assert len(json.loads(output)["trials"]) == 5
    digests = [digest for _, digest in jobs.scored(inside)]
    assert len(digests) - len(set(digests)) <= 1, "the one that was broken off, perhaps"


def test_a_terminal_that_is_closed(inside: Path) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx")
    ours, theirs = pty.openpty()
    environment = {**os.environ, **jobs.ENVIRONMENT, "SLOW": "1.5", "TERM": "xterm"}
    environment["PYTHONPATH"] = str(Path(octune.__file__).parents[1])
    command = [sys.executable, "-m", "octune", "tune", "conf.yaml", "--workspace", "ws"]

    def lead() -> None:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command, cwd=inside, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=lead,
    )  # fmt: skip
    os.close(theirs)
    threading.Thread(target=_drained, args=(ours,), daemon=True).start()
    waits(inside / "ws", "begun", process)
    os.kill(process.pid, signal.SIGHUP)  # the kernel's own, when the other end of the terminal goes
    assert process.wait(60) == 129
    resumed = jobs.start(inside, "resume", "ws", "--json")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 1, errors


def _drained(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass


# -- disks and folders ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount a small disk: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("left", [0, 2_000, 12_000, 60_000])
def test_a_full_disk(small_disk: Path, inside: Path, octune_command: Callable[..., Any], left: int) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx", criterion={"absolute": 0.5}, tuning={"max_trials": 2})
    filler = small_disk / "filler"
    _fill(filler, left)
    code, _, errors = octune_command("tune", "conf.yaml", "--workspace", small_disk / "ws", "--json")
    assert code == 2, errors
    assert "Traceback" not in errors
    assert "No space left" in errors
    filler.unlink()
    there = (small_disk / "ws" / "config.yaml").exists()
    words = (
        ("resume", small_disk / "ws") if there else ("tune", "conf.yaml", "--workspace", small_disk / "ws")
    )
    code, output, errors = octune_command(*words, "--json")
    assert code == 0, errors
    found = {path.name for path in (small_disk / "ws").iterdir()}
    assert found == {"config.yaml", "example.npz", "journal.jsonl", "lock", "model", "ranges.npz"}
    assert (small_disk / "ws" / "model" / "octune.json").exists()
    assert json.loads(output)["met"]


def _fill(filler: Path, left: int) -> None:
    """Leave this many bytes, in whole pages."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            file.truncate(max(0, file.tell() - left))


def test_a_model_that_found_no_room_is_saved_later(small_disk: Path, inside: Path) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx", criterion={"absolute": 0.5}, tuning={"max_trials": 2})
    settings = yaml.safe_load((inside / "conf.yaml").read_text())
    result = octune.tune(config={**settings, "workspace": {"path": "ws"}}, progress=False)
    _fill(small_disk / "filler", 8192)
    with pytest.raises(ArtifactError, match="No space left"):
        result.save(small_disk / "model")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    octune.replay("ws", rebuild=True).save(inside / "model")
    octune.load(inside / "model")


def test_a_read_only_disk(small_disk: Path, inside: Path, octune_command: Callable[..., Any]) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, _, errors = octune_command("tune", "conf.yaml", "--workspace", small_disk / "ws")
    assert (code, "Read-only file system" in errors, "Traceback" in errors) == (2, True, False)


def test_a_workspace_that_vanishes(inside: Path) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx", criterion={"absolute": 0.5}, tuning={"max_trials": 2})
    settings = yaml.safe_load((inside / "conf.yaml").read_text())

    class Deleting(octune.Listener):
        def trial(self, trial: octune.Trial) -> None:
            shutil.rmtree(inside / "ws", ignore_errors=True)

    options = {**settings, "workspace": {"path": "ws"}}
    result = octune.tune(config=options, listener=Deleting())
    assert result.met
    assert any("was deleted meanwhile" in note and "cannot be resumed" in note for note in result.notes)
    octune.load(result.save(inside / "model"))
    assert not (inside / "ws").exists()


@pytest.mark.parametrize("moment", ["staging", "replaced"])
def test_what_a_killed_process_left_of_a_model_is_cleared_up(tmp_path: Path, moment: str) -> None:
    model = tmp_path / "model"
    with complete_or_absent(model, "octune.json") as staging:
        (staging / "octune.json").write_text("old")
    code = f"""
import os, signal
from pathlib import Path
from octune.folders import complete_or_absent
if {moment!r} == "replaced":
    rename = Path.rename
    def killed(self, target):
        if Path(target).name == "model" and self.name != ".model-replaced":
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)
    Path.rename = killed
with complete_or_absent(Path("model"), "octune.json", overwrite=True) as staging:
    (staging / "octune.json").write_text("new")
    if {moment!r} == "staging":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(octune.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with complete_or_absent(tmp_path / "model", "octune.json", overwrite=True) as staging:
        assert (model / "octune.json").read_text() == "old", "what was there is there again"
        with complete_or_absent(tmp_path / "model", "octune.json", overwrite=True) as other:
            (other / "octune.json").write_text("of another")
        assert staging.is_dir(), "a process that is still there keeps its folder"
        (staging / "octune.json").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (model / "octune.json").read_text() == "new"


def test_what_a_killed_process_left_of_a_file_is_cleared_up(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_whole(path, b"old")
    (tmp_path / ".report.html-999999999.tmp").write_bytes(b"half")
    (tmp_path / f".report.html-{os.getppid()}.tmp").write_bytes(b"of a process that is there")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 2


# -- numbers and clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", jobs.FRAMEWORKS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["weights", "calibration"])
def test_numbers_that_are_not_finite(inside: Path, framework: str, value: float, where: str) -> None:
    """An error that says so, or a result; never a traceback of something else, and a journal that resumes."""
    pytest.importorskip({"pytorch": "torch"}.get(framework, framework))
    jobs.project(inside, framework)
    if where == "weights":
        weights = dict(np.load("weights.npz"))
        weights["w1"][0, 0] = value
        np.savez("weights.npz", **weights)
        jobs.rewrite(inside, framework)
    else:
        data = dict(np.load("digits.npz"))
        data["x"][::3] = value
        np.savez("digits.npz", **data)
    settings = yaml.safe_load((inside / "conf.yaml").read_text())
    options = {**settings, "workspace": {"path": "ws", "resume": True}}
    told = []
    for _ in range(2):
        try:
            result = octune.tune(config=options, progress=False)
            told.append(([trial.plan for trial in result.trials], [trial.error for trial in result.trials]))
        except OctuneError as error:
            told.append(str(error))
    assert told[0] == told[1]


def test_the_clock_is_set_back(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx", tuning={"timeout": 300})
    settings = yaml.safe_load((inside / "conf.yaml").read_text())
    real, calls = time.time, [0]

    def clock() -> float:
        calls[0] += 1
        return real() - 3600 * (calls[0] // 4)

    monkeypatch.setattr(time, "time", clock)
    result = octune.tune(config={**settings, "workspace": {"path": "ws"}}, progress=False)
    assert calls[0] > 8
    assert 0 < result.seconds < 100
    assert all(seconds >= 0 for seconds in result.stages.values())
    resumed = octune.tune(config={**settings, "workspace": {"path": "ws", "resume": True}}, progress=False)
    assert resumed.plan == result.plan
    assert resumed.report(inside / "report.html").stat().st_size > 1000


# -- the commands that measure it ----------------------------------------------------------------------------


def test_damaged_folders_give_no_traceback(faults: Any, inside: Path) -> None:
    """A few; the command reads thousands."""
    pytest.importorskip("onnx")
    import fuzz  # type: ignore[import-not-found]  # beside benchmarks/faults.py

    outcomes, tracebacks = fuzz.fuzzed(inside, 60, random.Random(11))
    assert not tracebacks, tracebacks[0]
    assert sum(outcomes.values()) == 60
    assert {name.partition(": ")[2] for name in outcomes} == {"used", "refused"}


def test_trials_leave_nothing_open(faults: Any, inside: Path) -> None:
    """A few; the command has hundreds, on all backends, and looks at memory as well."""
    pytest.importorskip("onnx")
    import soak  # type: ignore[import-not-found]  # beside benchmarks/faults.py

    jobs.project(inside, "onnx", tuning={"max_trials": 12})
    readings = soak._soaked(inside, 12)
    assert len(readings) == 13
    assert readings[-1]["files"] == readings[4]["files"]
