"""Scored on a real Ray cluster of several nodes: the same answers as in this process, whatever happens to
the workers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

import octune  # noqa: E402
from octune.engine.journal import Journal  # noqa: E402
from octune.engine.ray import Crew, Wanted  # noqa: E402
from octune.engine.ray.kind import describe  # noqa: E402
from octune.engine.ray.signals import undisguised, uninterrupted  # noqa: E402
from octune.errors import ClusterError, UnsupportedError, WorkspaceError  # noqa: E402
from tests.digits import Digits, config  # noqa: E402
from tests.end_to_end.test_early_stop import fragile  # noqa: E402
from tests.foreign import onnx_digits  # noqa: E402
from tests.ray_cluster import cluster  # noqa: E402

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes to score on, one where only timing is done, and one that is of another CPU class: its kernels
    run as if it were older.
    """
    with cluster(
        {"num_cpus": 2},
        {"num_cpus": 2},
        {"num_cpus": 1, "resources": {"octune_timing": 1}},
        {"num_cpus": 2, "env_vars": {"ONEDNN_MAX_CPU_ISA": "SSE41"}},
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    assert not ray.is_initialized()  # a run leaves nothing behind


def on(address: str, **engine: Any) -> dict[str, Any]:
    return {"name": "ray", "address": address, **engine}


def tune(
    data: Digits,
    engine: Any,
    workspace: Path | None = None,
    trials: int = 4,
    tuning: dict[str, Any] | None = None,
    **options: Any,
) -> octune.Result:
    """The fragile network, whose first plan is hopeless."""
    settings: dict[str, Any] = {
        **config(strategy="basic", max_trials=trials, **(tuning or {})),
        "quantization": {"approach": "static", "activation": {"algorithm": "minmax"}},
        "engine": engine,
        **({"workspace": {"path": workspace, "resume": True}} if workspace else {}),
    }
    if "evaluate" not in options:
        options = {"evaluation": data.labelled(4), "metric": "accuracy", **options}
    return octune.tune(fragile(data), calibration=data.batches(), config=settings, progress=False, **options)


class Ear(octune.Listener):
    """Hears on which nodes the work of each stage was done; and does ``then`` with what it hears."""

    def __init__(self, then: Any = lambda stage, done: None) -> None:
        self.at, self.nodes, self.then = "", defaultdict[str, set[str]](set), then

    def stage(self, name: str, detail: str) -> None:
        self.at = name
        self.then(name, {})

    def spread(self, done: Any) -> None:
        self.nodes[self.at] |= {node for node, parts in done.items() if parts}
        self.then(self.at, done)


SUM = r', "sum": "[0-9a-f]{8}"}'  # the end of a journal's line
TIMES = {"seconds", "speedup", "speedup_interval", "latency_ms", "spread_ms", "fp32_spread_ms", "load"}


def answers(folder: Path) -> list[Any]:
    """What a journal says, without times and where it was found."""
    lines = re.sub(SUM, "}", (folder / "journal.jsonl").read_text()).splitlines()
    found = [json.loads(line, object_hook=_without_times) for line in lines]
    return [line for line in found if line["event"] not in ("cluster", "run", "stage", "cost", "result")]


def _without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


@pytest.fixture(scope="module")
def local(data: Digits, tmp_path_factory: pytest.TempPathFactory) -> tuple[octune.Result, list[Any]]:
    folder = tmp_path_factory.mktemp("local")
    return tune(data, "local", folder), answers(folder)


def test_the_journal_of_a_cluster_is_that_of_this_process_and_other_cpus_are_kept_apart(
    data: Digits, address: str, local: tuple[octune.Result, list[Any]], tmp_path: Path
) -> None:
    ear = Ear()
    result = tune(data, on(address), tmp_path, listener=ear)
    expected, journal = local
    assert answers(tmp_path) == journal  # plans, scores, items, verdicts, in the same order
    assert result.plan == expected.plan
    assert [t.score.items.tolist() for t in result.trials] == [
        t.score.items.tolist() for t in expected.trials
    ]
    first = result.trials[0].score
    assert first.partial  # stopped at the same item, though others were under way
    # two nodes, of which both took part
    assert {stage: len(ear.nodes[stage]) for stage in ("baseline", "calibration", "harm")} == {
        "baseline": 2,
        "calibration": 2,
        "harm": 2,
    }
    assert {"kept", "harm"} <= {line["event"] for line in journal}  # ranges by their checksum
    assert any("scored by 2 workers on 2 nodes" in note for note in result.notes)
    left_out = [note for note in result.notes if "is not used: its CPU is of another class" in note]
    assert len(left_out) == 1
    assert "lacks avx" in left_out[0]
    record = Journal.read(tmp_path).last("cluster")
    assert len(record["nodes"]) == 2
    assert all(kind["class"] == describe()["class"] for kind in record["nodes"].values())
    assert len(record["left out"]) == 1


def test_without_a_node_of_this_class_nothing_is_scored(address: str) -> None:
    here = {**describe(), "libraries": {**describe()["libraries"], "numpy": "0.1"}}
    crew = Crew(Wanted(address))
    try:
        with pytest.raises(ClusterError, match=r"No node of the cluster can score.* and here it is 0\.1"):
            crew.start(here)
    finally:
        crew.close()


def test_speed_is_measured_on_a_node_of_its_own(data: Digits, address: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def evaluate(model: Any, subset: Any = None) -> list[float]:
        hits = data.hits(model).tolist()
        with seen.open("a") as file:
            file.write(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')} {torch.get_num_threads()}\n")
        return hits if subset is None else [hits[item] for item in subset]

    folder = tmp_path / "run"
    speed = {"objective": "performance"}
    result = tune(data, on(address, timing="node"), folder, tuning=speed, evaluate=evaluate)
    assert result.best.speed is not None or not result.met
    journal = Journal.read(folder)
    assert journal.last("cost")["answer"]
    timed = [stage["detail"] for stage in journal.records("stage") if stage["name"] == "cost"]
    assert len(timed) == 1
    assert timed[0].startswith("timing ops on the timing node ")
    kinds = Journal.read(folder).last("cluster")["nodes"]
    assert len(kinds) == 3  # two that score, one that times
    assert sorted(len(kind["cores"]) for kind in kinds.values())[0] == 1  # pinned
    lines = [line.split() for line in seen.read_text().splitlines()]
    elsewhere = [words for words in lines if words[0] != str(os.getpid())]
    assert elsewhere
    assert {tuple(words[1:]) for words in elsewhere} == {
        ("2", "2")
    }  # threads were set before torch was imported


def test_a_timing_node_must_be_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octune.engine.ray.crew.TIMING", "another_resource")
    crew = Crew(Wanted(address, timing=True))
    try:
        with pytest.raises(ClusterError, match="no node of the cluster has the resource another_resource"):
            crew.start(describe())
    finally:
        crew.close()


class Mortal(torch.nn.Module):
    """A model that kills the first worker which runs it in each of these stages."""

    def __init__(self, model: torch.nn.Module, folder: Path, stages: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.folder, self.stages, self.driver = model, folder, stages, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.driver:
            self._die()
        return self.model(x)

    def _die(self) -> None:
        stage = (self.folder / "stage").read_text()
        if stage in self.stages and not (self.folder / stage).exists():
            (self.folder / stage).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_workers_lost_in_calibration_and_in_harm_cost_their_part(
    data: Digits, address: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    # not while workers read it
    ear = Ear(lambda stage, done: None if done else (notes / "stage").write_text(stage))
    found = {}
    for engine in ("local", "ray"):
        found[engine] = octune.tune(
            Mortal(data.model(), notes, ("calibration", "harm")),
            calibration=data.batches(),
            evaluation=data.labelled(),
            metric="accuracy",
            config={
                **config(max_trials=1),
                "engine": on(address) if engine == "ray" else "local",
                "workspace": {"path": tmp_path / engine},
            },
            listener=ear,
        ).plan
    assert sorted(file.name for file in notes.iterdir()) == ["calibration", "harm", "stage"]  # both died
    assert found["ray"] == found["local"]
    assert answers(tmp_path / "ray") == answers(tmp_path / "local")


def test_ctrl_c_while_ops_are_probed_leaves_nothing_behind(
    data: Digits, address: str, tmp_path: Path, local: tuple[octune.Result, list[Any]]
) -> None:
    def press(at: str, done: Any) -> None:
        if at == "harm" and done:  # workers are at it
            signal.raise_signal(signal.SIGINT)

    result = tune(data, on(address), tmp_path, listener=Ear(press))
    assert result.stopped_because.startswith("interrupted by the user")
    workers = {kind["pid"] for kind in Journal.read(tmp_path).last("cluster")["nodes"].values()}
    until = time.monotonic() + 10
    while time.monotonic() < until and any(map(_alive, workers)):
        time.sleep(0.1)
    assert not any(map(_alive, workers))
    expected, _ = local
    assert tune(data, "local", tmp_path).plan == expected.plan


class Slow:
    """Scores single items, and takes its time; notes who is at it."""

    def __init__(self, data: Digits, folder: Path, seconds: float) -> None:
        self.test, self.labels, self.folder, self.seconds = data.test, data.labels, folder, seconds

    def __call__(self, model: Any, subset: Any = None) -> list[float]:
        numbers = list(range(len(self.test))) if subset is None else list(subset)
        if subset is not None:
            (self.folder / str(os.getpid())).touch()
            time.sleep(self.seconds * len(numbers))
        with torch.no_grad():
            return (model(self.test).argmax(1) == self.labels).float()[numbers].tolist()


def test_a_worker_that_is_killed_costs_nothing_but_time(data: Digits, address: str, tmp_path: Path) -> None:
    expected = tune(data, "local", evaluate=Slow(data, tmp_path, 0))
    pids, killed = tmp_path / "pids", []
    pids.mkdir()

    def kill() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not killed:
            for file in pids.iterdir():
                if int(file.name) != os.getpid():
                    time.sleep(0.1)
                    os.kill(int(file.name), signal.SIGKILL)
                    killed.append(int(file.name))
                    return
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    result = tune(data, on(address), evaluate=Slow(data, pids, 0.002))
    killer.join()
    assert killed
    assert len(list(pids.iterdir())) >= 3  # this process, the lost one, and another
    assert [t.score.items.tolist() for t in result.trials] == [
        t.score.items.tolist() for t in expected.trials
    ]
    assert [t.verdict for t in result.trials] == [t.verdict for t in expected.trials]


def test_what_kills_every_worker_is_the_plans_fault(data: Digits, address: str) -> None:
    def evaluate(model: Any, subset: Any = None) -> list[float]:
        hits = data.hits(model).tolist()
        if subset is None:
            return hits
        if not isinstance(model[0], torch.nn.Linear):
            os.kill(os.getpid(), signal.SIGKILL)
        return [hits[item] for item in subset]

    result = tune(data, on(address), evaluate=evaluate)
    assert "ended 3 workers of the cluster" in result.trials[0].error


def test_what_the_users_code_raises_is_what_the_trial_says(
    data: Digits, address: str, tmp_path: Path
) -> None:
    class Moody(Slow):
        def __call__(self, model: Any, subset: Any = None) -> list[float]:
            if subset is not None and not isinstance(model[0], torch.nn.Linear):
                raise KeyError("no such thing")
            return super().__call__(model, subset)

    errors = [
        [trial.error for trial in tune(data, engine, evaluate=Moody(data, tmp_path, 0)).trials]
        for engine in ("local", on(address))
    ]
    assert errors[0] == errors[1]
    assert "no such thing" in errors[0][0]


def test_a_trial_that_takes_too_long_is_called_off(data: Digits, address: str, tmp_path: Path) -> None:
    settings = {**config(max_trials=1, trial_timeout=2), "engine": on(address)}
    begun = time.monotonic()
    result = octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluate=Slow(data, tmp_path, 0.1),
        config=settings,
        progress=False,
    )
    assert "ran past the limit of 2 s" in result.trials[0].error
    assert time.monotonic() - begun < 60


def test_a_signal_comes_out_of_compiled_code_as_what_it_is() -> None:
    disguised = SystemError("wait returned a result with an exception set")
    disguised.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), undisguised():
        raise disguised
    done = []

    def pressed() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("all the same")

    with pytest.raises(KeyboardInterrupt):
        pressed()
    assert done


class Naps:
    """Batches that take their time to be picked for the first time: what an evaluation is bound by, on a
    machine with few cores. Every worker writes down when it slept. None sleeps before all of them are there:
    how long a worker takes to open its model is not what is measured.
    """

    def __init__(self, batches: list[Any], seconds: float, folder: Path, workers: int) -> None:
        self.batches, self.seconds, self.workers, self.driver = batches, seconds, workers, os.getpid()
        self.folder, self.arrived = folder / "naps", folder / "arrived"
        self.folder.mkdir(parents=True)
        self.arrived.mkdir()

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Any:
        note = self.folder / str(number)
        if os.getpid() != self.driver and not note.exists():
            self._gather()
            begun = time.monotonic()  # the same clock in all processes of a machine
            time.sleep(self.seconds)
            note.write_text(f"{os.getpid()} {begun} {time.monotonic()}")
        return self.batches[number]

    def _gather(self) -> None:
        (self.arrived / str(os.getpid())).touch()
        until = time.monotonic() + 120
        while len(list(self.arrived.iterdir())) < self.workers and time.monotonic() < until:
            time.sleep(0.02)

    def at_once(self) -> float:
        """How many workers slept at a time on average, while none of them was still to begin or through."""
        slept = defaultdict(list)
        for note in self.folder.iterdir():
            pid, begun, ended = note.read_text().split()
            slept[pid].append((float(begun), float(ended)))
        assert len(slept) == self.workers
        begun = max(min(naps)[0] for naps in slept.values())
        ended = min(max(naps)[1] for naps in slept.values())
        together = sum(
            max(0.0, min(end, ended) - max(start, begun)) for naps in slept.values() for start, end in naps
        )
        assert ended - begun > 2 * self.seconds
        return together / (ended - begun)


@pytest.mark.parametrize(("workers", "batches", "gain"), [(2, 10, 1.9), (4, 20, 3.6)])
def test_workers_sleep_at_the_same_time(
    data: Digits, address: str, tmp_path: Path, monkeypatch: Any, workers: int, batches: int, gain: float
) -> None:
    """An evaluation that is bound by something else than these CPUs takes a half or a quarter of the time. It
    is the sleep that is measured: how long workers wait for a CPU in between is this machine's affair.
    """
    monkeypatch.setattr("octune.engine.ray.crew.STARTING", 180.0)  # all of them are to be there
    found = []
    while max(found, default=0.0) < gain and len(found) < 3:
        naps = Naps(data.labelled(15)[:batches], 1.0, tmp_path / str(len(found)), workers)
        engine = on(address, cpus=1, workers=workers)
        tune(data, engine, evaluation=naps, metric="accuracy", trials=1)
        found.append(naps.at_once())
    assert max(found) >= gain, found


FACTORIES = """
import time
from pathlib import Path
from tests.digits import digits

def model():
    return digits().model()

class Naps(list):
    def __getitem__(self, number):
        if number:
            time.sleep(0.15)
        return super().__getitem__(number)

def evaluation():
    (Path(__file__).parent / "made").open("a").write("x")
    return Naps(digits().labelled(12))

def calibration():
    return digits().batches()
"""


def test_ctrl_c_leaves_nothing_behind_and_another_driver_resumes(address: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTORIES)
    settings = {
        **config(max_trials=2),
        "model": {"path": "mine:model"},
        "calibration": {"data": {"factory": "mine:calibration"}},
        "evaluation": {"data": {"factory": "mine:evaluation"}, "metric": "accuracy"},
    }
    settings["tuning"]["timeout"] = 600
    (tmp_path / "conf.yaml").write_text(json.dumps(settings))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{tmp_path}",
        "OCTUNE_COST_CACHE": "off",
    }
    command = [sys.executable, "-m", "octune"]
    run = [*command, "tune", "conf.yaml", "--engine", "ray", "--address", address, "--workspace", "run"]
    process = subprocess.Popen(
        run, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    journal, until = tmp_path / "run" / "journal.jsonl", time.monotonic() + 120
    while time.monotonic() < until and not (
        journal.exists() and '"baseline", "answer"' in journal.read_text()
    ):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    until = time.monotonic() + 60
    while time.monotonic() < until and '"name": "trial"' not in journal.read_text():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    workers = {kind["pid"] for kind in Journal.read(tmp_path / "run").last("cluster")["nodes"].values()}
    assert workers
    until = time.monotonic() + 10
    while time.monotonic() < until and any(map(_alive, workers)):
        time.sleep(0.1)
    assert not any(map(_alive, workers))
    assert (
        tmp_path / "made"
    ).stat().st_size >= 3  # by this process and the workers: named data does not travel
    resumed = subprocess.run(
        [*command, "resume", "run", "--engine", "local", "--quiet"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert resumed.returncode in (0, 1), resumed.stderr
    baselines = [line for line in journal.read_text().splitlines() if '"baseline", "answer"' in line]
    assert len(baselines) == 1  # what the cluster had found was not scored again


def _alive(pid: int) -> bool:
    try:
        return "ray::Worker" in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return False


def test_a_run_goes_on_on_the_same_kind_of_cpu_only(data: Digits, address: str, tmp_path: Path) -> None:
    tune(data, on(address), tmp_path)
    journal = tmp_path / "journal.jsonl"
    cpu = json.dumps(describe()["cpu"])
    text = journal.read_text()
    assert cpu in text
    # Lines of people's own have no checksum.
    journal.write_text(re.sub(SUM, "}", text.replace(f'"cpu": {cpu}', '"cpu": "Another CPU"')))
    with pytest.raises(WorkspaceError, match="begun on another kind of CPU"):
        tune(data, on(address), tmp_path)


def test_what_cannot_travel_is_refused_by_name(data: Digits, address: str) -> None:
    lock = threading.Lock()

    def evaluate(model: Any, subset: Any = None) -> list[float]:
        with lock:
            hits = data.hits(model).tolist()
        return hits if subset is None else [hits[item] for item in subset]

    with pytest.raises(UnsupportedError, match="evaluate function cannot be sent to the nodes"):
        tune(data, on(address), evaluate=evaluate)


def test_a_function_that_takes_no_subset_stays_here(data: Digits, address: str) -> None:
    result = tune(data, on(address), evaluate=data.accuracy)
    assert any("takes no subset, so it cannot be spread" in note for note in result.notes)
    assert result.baseline.score.value == data.accuracy(fragile(data))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "a run has to be a part of the cluster"),
        ("127.0.0.1:9", "No Ray cluster answers"),
    ],
)
def test_an_address_that_does_not_work_says_why(
    data: Digits, address: str, message: str, monkeypatch: Any
) -> None:
    with pytest.raises(ClusterError, match=message):
        tune(data, on(address))


def test_the_local_engine_imports_no_ray(tmp_path: Path) -> None:
    code = (
        "import sys, octune; from tests.digits import config, digits; d = digits();"
        "octune.tune(d.model(), calibration=d.batches(), evaluation=d.labelled(), metric='accuracy',"
        " config=config(max_trials=1), progress=False); assert 'ray' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment, timeout=120)


def test_an_onnx_file_is_opened_by_its_path_on_each_node(data: Digits, address: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = onnx_digits() / "fp32.onnx"
    found, ear = {}, Ear()
    for engine in ("local", "ray"):
        settings = {
            **config(max_trials=1),
            "engine": on(address) if engine == "ray" else "local",
            "workspace": {"path": tmp_path / engine},
        }
        # Workers have two CPUs: they calibrate and probe on one, and score on both.
        settings["performance"] = {**settings["performance"], "compile": "auto", "threads": 1}
        result = octune.tune(
            str(path),
            calibration=[batch.numpy() for batch in data.batches()],
            evaluation=[(inputs.numpy(), labels.numpy()) for inputs, labels in data.labelled(20)],
            metric="accuracy",
            config=settings,
            listener=ear,
        )
        found[engine] = [
            (trial.plan, trial.score.items.tolist()) for trial in (result.baseline, result.trials[0])
        ]
        journal = answers(tmp_path / engine)
        found[engine] += [line for line in journal if line["event"] in ("kept", "harm", "plan harm", "ops")]
    assert found["ray"] == found["local"]
    assert len(ear.nodes["calibration"]) == len(ear.nodes["harm"]) == 2


@pytest.mark.shared
@pytest.mark.slow
def test_squad_has_the_same_answers_question_by_question(shared: Path, address: str, tmp_path: Path) -> None:
    squad = {"data": {"task": "squad", "folder": str(shared / "data" / "squad")}}
    settings: dict[str, Any] = {
        "model": {"path": str(shared / "models" / "minilm-l6-squad")},
        "calibration": {**squad, "samples": 16},
        "evaluation": {**squad, "samples": 96, "batch_size": 8},
        "performance": {"compile": "never", "iterations": 1, "warmup": 0, "threads": 1},
        "tuning": {"objective": "modelsize", "max_trials": 1},
    }
    found = {}
    for engine in ("local", "ray"):
        folder = tmp_path / engine
        chosen = on(address, cpus=1, workers=2) if engine == "ray" else "local"
        result = octune.tune(
            config={**settings, "engine": chosen, "workspace": {"path": folder}}, progress=False
        )
        found[engine] = result.plan, [trial.verdict for trial in result.trials], answers(folder)
        assert result.baseline.score.items.size > 80
    assert found["ray"] == found["local"]
