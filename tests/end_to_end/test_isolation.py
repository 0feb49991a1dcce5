"""Plans that crash, hang or take all memory are failed trials where they run in a process of their own; all
others score the same there as here.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import octune
from octune.engine import apart, isolation
from octune.errors import ConfigError, UnsupportedError
from octune.job import Job
from octune.plan import Plan, Scheme
from octune.request import Request
from octune.result import Trial
from tests.scripts import load_script

jobs = load_script("benchmarks/fault_jobs.py")

# The metric of a job whose process ends, hangs or is out of memory at its second candidate.
FAULTY = """
import os, signal, time
import numpy as np
import fault_model

HERE = os.environ.get("FAULT_HERE")


def likely(predictions, labels):
    found = fault_model.likely(predictions, labels)
    scored = [line.split()[2] for line in open("calls.txt") if line.split()[1] == str(len(labels))]
    candidates = list(dict.fromkeys(digest for digest in scored if digest != scored[0]))
    if len(candidates) == 2 and scored[-1] == candidates[1] and (HERE is None or HERE == str(os.getpid())):
        {fault}
    return found
"""
FAULTS = {
    "crash": ("import ctypes; ctypes.string_at(8)", "ended by SIGSEGV"),
    "abort": ("os.abort()", "ended by SIGABRT"),
    "exit": ("os._exit(7)", "ended with exit code 7"),
    "memory": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, as Linux does when memory runs out"),
    # a native call that holds the interpreter's lock: no signal is answered
    "hang": ("import ctypes; ctypes.PyDLL(None).sleep(600)", "the limit of 10 s for one trial"),
    "allocation": ("np.empty(1 << 50)", "Unable to allocate"),
}


def job(folder: Path, framework: str, fault: str, **tuning: Any) -> dict[str, Any]:
    jobs.project(folder, framework, evaluation={"metric": "fault_metric:likely"})
    (folder / "fault_metric.py").write_text(FAULTY.replace("{fault}", FAULTS[fault][0]))
    settings: dict[str, Any] = yaml.safe_load((folder / "conf.yaml").read_text())
    return {**settings, "tuning": {**settings["tuning"], "max_trials": 3, **tuning}}


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("fault_model", "fault_metric"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(isolation, "GRACE", 1.0)
    return tmp_path


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_the_result_of_its_trial(inside: Path, fault: str) -> None:
    pytest.importorskip("onnx")
    # on a machine that others keep busy even small trials take seconds
    limit = {"trial_timeout": 10} if fault == "hang" else {}
    config = job(inside, "onnx", fault, isolate=True, **limit)
    result = octune.tune(config={**config, "workspace": {"path": "ws"}}, progress=False)
    errors = [trial.error for trial in result.trials]
    assert errors[0] is None
    assert errors[2] is None
    assert FAULTS[fault][1] in (errors[1] or "")
    assert result.best in (result.trials[0], result.trials[2])
    calls = len(jobs.scored(inside))
    again = octune.tune(config={**config, "workspace": {"path": "ws", "resume": True}}, progress=False)
    assert [trial.error for trial in again.trials] == errors, "it is not tried again"
    assert len(jobs.scored(inside)) == calls
    assert not children()


@pytest.mark.parametrize("framework", jobs.FRAMEWORKS)
def test_scores_are_the_same_to_the_bit(inside: Path, framework: str) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(framework, framework))
    jobs.project(inside, framework)
    settings = yaml.safe_load((inside / "conf.yaml").read_text())
    settings["tuning"]["max_trials"] = 2
    here = octune.tune(config=settings, progress=False)
    apart = octune.tune(
        config={**settings, "tuning": {**settings["tuning"], "isolate": True}}, progress=False
    )
    assert apart.plan == here.plan
    for one, other in zip(here.trials, apart.trials, strict=True):
        assert one.plan == other.plan
        assert one.size == other.size
        assert one.score is not None
        assert other.score is not None
        np.testing.assert_array_equal(one.score.items, other.score.items)
    pids = {pid for pid, _ in jobs.scored(inside)}
    assert len(pids) == 2
    assert str(os.getpid()) in pids


def test_a_resumed_run_tries_apart_what_has_ended_its_process(inside: Path) -> None:
    pytest.importorskip("onnx")
    job(inside, "onnx", "crash")
    process = jobs.start(inside, "tune", "conf.yaml", "--workspace", "ws")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGSEGV
    resumed = jobs.start(inside, "resume", "ws", "--json")
    output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 1, errors
    result = octune.replay(inside / "ws")
    assert [trial.error is None for trial in result.trials] == [True, False, True, True, True]
    assert "ended by SIGSEGV" in output
    assert [record["event"] for record in jobs.journal(inside / "ws")].count("begun") > 5


# A kernel of one op ends the process that runs it, where single ops are looked at.
CRASHING = """
import ctypes
from fault_model import likely
from octune.backends.onnx.backend import OnnxBackend


def crashing(method, hit):
    real = getattr(OnnxBackend, method)

    def changed(self, *given):
        if hit(*given):
            ctypes.string_at(8)
        return real(self, *given)

    setattr(OnnxBackend, method, changed)


{fault}
"""
IN_STAGES = {
    "harm": "crashing('harm', lambda candidates, *rest: 'dense1' in candidates)",
    "cost": "crashing('alone', lambda op, scheme, ranges: op.name == 'dense1' and not scheme.is_float)",
    "floats": "crashing('finalists', lambda plan, *rest: not plan.names('int8'))",
}


@pytest.fixture
def kernels(inside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What jobs change of the backend in this process is as it was afterwards."""
    pytest.importorskip("onnx")
    from octune.backends.onnx.backend import OnnxBackend

    for method in ("harm", "alone", "finalists"):
        monkeypatch.setattr(OnnxBackend, method, getattr(OnnxBackend, method))
    return inside


def hurt(folder: Path, stage: str, **sections: Any) -> dict[str, Any]:
    """A job whose process ends in that stage."""
    jobs.project(
        folder, "onnx", evaluation={"metric": "fault_metric:likely"}, criterion={"absolute": 0.5}, **sections
    )
    (folder / "fault_metric.py").write_text(CRASHING.replace("{fault}", IN_STAGES[stage]))
    settings: dict[str, Any] = yaml.safe_load((folder / "conf.yaml").read_text())
    return settings


def test_an_op_that_ends_the_process_stays_in_float(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTUNE_COST_CACHE", "off")
    tuning = {"isolate": True, "objective": "performance", "strategy": "basic", "max_trials": 1}
    config = hurt(kernels, "cost", tuning=tuning)
    result = octune.tune(config={**config, "workspace": {"path": "ws"}}, progress=False)
    assert result.trials[0].plan.names("int8") == ["dense0", "dense2"]
    why = "the cost of ops cannot be found: the process that tried it was ended by SIGSEGV"
    assert [op.note for op in result.ops] == ["", why, ""]
    assert any("1 op ended the process" in note and "dense1" in note for note in result.notes)
    before = (kernels / "ws" / "journal.jsonl").read_text().count('"event": "crashed"')
    again = octune.tune(config={**config, "workspace": {"path": "ws", "resume": True}}, progress=False)
    assert again.ops == result.ops
    assert (kernels / "ws" / "journal.jsonl").read_text().count('"event": "crashed"') == before == 1


def test_a_resumed_run_looks_apart_at_ops_where_its_process_has_ended(kernels: Path) -> None:
    hurt(kernels, "harm")
    process = jobs.start(kernels, "tune", "conf.yaml", "--workspace", "ws")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGSEGV
    resumed = jobs.start(kernels, "resume", "ws", "--json")
    output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    told = json.loads(output)
    assert "ended by SIGSEGV" in told["kept"]["dense1"]
    # what did not end a process is done here again
    assert {pid for pid, _ in jobs.scored(kernels)} == {str(resumed.pid)}


def test_an_op_that_is_pinned_and_cannot_run_is_an_error(kernels: Path) -> None:
    ops = {"dense1": {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8"}}}
    config = hurt(kernels, "harm", tuning={"isolate": True}, quantization={"ops": ops})
    with pytest.raises(UnsupportedError, match=r"'dense1' in int8.*SIGSEGV.*quantization\.ops"):
        octune.tune(config=config, progress=False)


def test_ops_are_given_up_where_nothing_runs(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST", 2)
    config = hurt(kernels, "harm", tuning={"isolate": True})
    source = (kernels / "fault_metric.py").read_text()
    (kernels / "fault_metric.py").write_text(source.replace("'dense1' in candidates", "candidates"))
    result = octune.tune(config=config, progress=False)
    assert result.plan.names("int8") == []
    assert len(children()) == 0
    assert "2 processes had ended before" in result.ops[-1].note


def test_fp32_that_crashes_in_another_form_has_none(kernels: Path) -> None:
    pytest.importorskip("openvino")
    hurt(kernels, "floats", tuning={"isolate": True})
    config = yaml.safe_load((kernels / "conf.yaml").read_text())
    with Job.of(Request(config=config)) as job:
        study = job.study
        study.baseline()
        study.survey.prepare(job.calibration)
        ranges = study.survey.calibrate(job.calibration, 64)
        fp32 = Plan({op.name: Scheme.fp32() for op in study.backend.ops()})
        assert not study.forms.make(Trial(fp32, form="fp32"), ranges)
        assert study.forms.floats == {}
        assert any("fp32 has no other form" in note and "by SIGSEGV" in note for note in study.notes)


def test_forms_that_were_finished_are_not_done_again_apart(inside: Path) -> None:
    """Killed after a form was timed, and before it was noted that all forms were."""
    pytest.importorskip("openvino")
    jobs.project(
        inside,
        "onnx",
        criterion={"absolute": 0.5},
        performance={"compile": "auto", "compare_fp32": "never"},
        tuning={"max_trials": 1},
    )
    settings = yaml.safe_load((inside / "conf.yaml").read_text())
    first = octune.tune(config={**settings, "workspace": {"path": "ws"}}, progress=False)
    path = inside / "ws" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    events = [record["event"] for record in jobs.journal(inside / "ws")]
    path.write_bytes(b"".join(lines[: events.index("forms")]))
    before = jobs.scored(inside)
    again = octune.tune(config={**settings, "workspace": {"path": "ws", "resume": True}}, progress=False)
    assert [trial.form for trial in again.trials] == [trial.form for trial in first.trials]
    assert jobs.scored(inside) == before
    after = [record["event"] for record in jobs.journal(inside / "ws")]
    assert (after.count("speed"), after.count("trial")) == (events.count("speed"), events.count("trial"))


def test_what_is_not_a_crash_is_not_tried_apart(inside: Path) -> None:
    """Ctrl-C in a trial: the resumed run tries it again here."""
    pytest.importorskip("onnx")
    config = job(inside, "onnx", "exit")
    source = (inside / "fault_metric.py").read_text()
    (inside / "fault_metric.py").write_text(source.replace("os._exit(7)", "raise KeyboardInterrupt"))
    first = octune.tune(config={**config, "workspace": {"path": "ws"}}, progress=False)
    assert first.stopped_because.startswith("interrupted")
    (inside / "fault_metric.py").write_text("from fault_model import likely\n")
    octune.tune(config={**config, "workspace": {"path": "ws", "resume": True}}, progress=False)
    assert {pid for pid, _ in jobs.scored(inside)} == {str(os.getpid())}


def test_a_job_that_cannot_be_made_again_is_refused_at_the_first_trial(inside: Path) -> None:
    pytest.importorskip("onnx")
    config = {**job(inside, "onnx", "exit", isolate=True)}
    del config["evaluation"]
    with pytest.raises(ConfigError, match=r"tuning\.isolate.*lambda.*modules that can be imported"):
        octune.tune(config=config, evaluate=lambda model: 1.0, progress=False)


def test_workers_of_a_cluster_are_processes_of_their_own(inside: Path) -> None:
    """So nothing more is asked of this machine before something has crashed here."""
    pytest.importorskip("onnx")
    pytest.importorskip("ray")
    config = {**job(inside, "onnx", "exit", isolate=True), "engine": "ray"}
    with Job.of(Request(config=config)) as made:
        key = {"form": "eager", "digest": "x", "samples": 1}
        assert not made.study.apart.wanted("trial", key)
        made.study.journal.begin("trial", key)
        assert made.study.apart.wanted("trial", key)


def test_ctrl_c_ends_the_other_process_too(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setenv("SLOW", "3")
    jobs.project(inside, "onnx", tuning={"isolate": True})
    process = jobs.start(inside, "tune", "conf.yaml", "--workspace", "ws", "--quiet")
    deadline = time.monotonic() + 100
    while "begun" not in {record["event"] for record in jobs.journal(inside / "ws")}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not children(process.pid)


def children(parent: int | None = None) -> list[int]:
    """Processes that are still there of those that this one, or ``parent``, has started to try plans in."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
            owner = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"octune.isolated" in words and owner == (os.getpid() if parent is None else parent):
            found.append(int(path.parent.name))
    return found
