"""Nodes of a real Ray cluster that do nothing but time: they share out ops, one of them may be lost, and
speeds of two kinds of CPU never meet.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

import octune  # noqa: E402
from octune.cost.latency import Speedup  # noqa: E402
from octune.engine.journal import Journal  # noqa: E402
from octune.engine.ray import Crew, Wanted  # noqa: E402
from octune.engine.ray.hands import shared_out  # noqa: E402
from octune.engine.ray.kind import describe  # noqa: E402
from octune.engine.timed_on import TimedOn  # noqa: E402
from octune.errors import ClusterError, WorkspaceError  # noqa: E402
from tests.digits import Digits, config  # noqa: E402
from tests.end_to_end.test_ray import SUM, Ear, on  # noqa: E402
from tests.foreign import onnx_digits  # noqa: E402
from tests.ray_cluster import cluster  # noqa: E402

pytestmark = pytest.mark.timeout(240)
TIMING = {"octune_timing": 1}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One node that scores, two that time."""
    with cluster(
        {"num_cpus": 1}, {"num_cpus": 1, "resources": TIMING}, {"num_cpus": 1, "resources": TIMING}
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


def tune(data: Digits, engine: Any, folder: Path, performance: Any = None, **options: Any) -> octune.Result:
    settings = config(max_trials=1, objective="performance")
    return octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluation=data.labelled(),
        metric="accuracy",
        config={
            **settings,
            "performance": {**settings["performance"], "threads": 1, **(performance or {})},
            "engine": engine,
            "workspace": {"path": folder, "resume": True},
        },
        **{"progress": False, **options},
    )


def timed(folder: Path) -> list[Any]:
    """Which ops were timed in which schemes, in the order of the journal."""
    rows = Journal.read(folder).last("cost")["answer"]
    assert all(0 < milliseconds < 1000 for *_, milliseconds in rows)
    return [row[:2] for row in rows]


def test_ops_are_shared_out_between_the_nodes_that_time(data: Digits, address: str, tmp_path: Path) -> None:
    ear = Ear()
    result = tune(data, on(address, timing="node"), tmp_path / "ray", listener=ear)
    tune(data, "local", tmp_path / "local")
    assert len(ear.nodes["cost"]) == 2
    assert ear.nodes["calibration"] == ear.nodes["harm"]
    assert not ear.nodes["cost"] & ear.nodes["harm"]  # those that time do nothing else
    assert timed(tmp_path / "ray") == timed(tmp_path / "local")
    assert result.trials[0].speed is not None
    journal = Journal.read(tmp_path / "ray")
    assert TimedOn.before(journal) == TimedOn(describe()["cpu"], 1)
    details = [stage["detail"] for stage in journal.records("stage") if stage["name"] == "cost"]
    assert details == [f"timing ops on the timing nodes {' and '.join(sorted(ear.nodes['cost']))}"]


def test_groups_stay_together_and_weigh_the_same() -> None:
    groups = [["a", "b"], ["c"], ["d"], ["e"]]
    work = {"a": 3, "b": 3, "c": 4, "d": 2, "e": 1}
    assert shared_out(groups, 2, work.__getitem__) == [["a", "b", "e"], ["c", "d"]]
    assert shared_out(groups[:1], 3, work.__getitem__) == [["a", "b"]]


def kill_once(method: str) -> threading.Thread:
    """Kill the first worker of this process that is at that method."""

    def kill() -> None:
        until = time.monotonic() + 100
        while time.monotonic() < until:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if f"ray::Worker.{method}" in " ".join(process.cmdline()):
                        process.kill()
                        return
            time.sleep(0.005)
        pytest.fail(f"nobody was at {method}")

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


@pytest.mark.parametrize("method", ["costs", "speed"])
def test_a_node_that_is_lost_while_it_times_costs_nothing_but_time(
    data: Digits, address: str, tmp_path: Path, method: str
) -> None:
    killer = kill_once(method)
    performance = {"iterations": 200}  # long enough to be struck
    result = tune(data, on(address, timing="node"), tmp_path / "ray", performance)
    killer.join()
    assert result.trials[0].error is None
    assert result.trials[0].speed is not None
    tune(data, "local", tmp_path / "local")
    assert timed(tmp_path / "ray") == timed(tmp_path / "local")


def test_speeds_of_two_kinds_of_cpu_never_meet(data: Digits, address: str, tmp_path: Path) -> None:
    """A run goes on where its speeds were measured, and nowhere else, on whichever engine."""
    there, here = tmp_path / "there", tmp_path / "here"
    tune(data, on(address, timing="node"), there)
    elsewhere(there, '"timed on": {"cpu": ')
    tune(data, "local", here)
    elsewhere(here, '"machine": {"cpu": ')
    for folder in (there, here):
        with pytest.raises(ClusterError, match=r"no node .* can be used\. .* of Another CPU with 1 thread"):
            tune(data, on(address, timing="node"), folder)
        with pytest.raises(WorkspaceError, match=r"another kind of CPU \(Another CPU with 1 thread, here "):
            tune(data, on(address), folder)
    with pytest.raises(WorkspaceError, match=r"another kind of CPU \(Another CPU with 1 thread, here "):
        tune(data, "local", there)


def elsewhere(folder: Path, said: str) -> None:
    """The journal of a run as if another CPU had been at work."""
    journal = folder / "journal.jsonl"
    text, before = journal.read_text(), said + json.dumps(describe()["cpu"])
    assert before in text
    # Lines of people's own have no checksum.
    journal.write_text(re.sub(SUM, "}", text.replace(before, said + '"Another CPU"')))


def test_nodes_that_time_have_as_many_threads(address: str) -> None:
    crew = Crew(Wanted(address, timing=True))
    crew.timed_on = TimedOn(describe()["cpu"], 2)
    try:
        with pytest.raises(ClusterError, match=r"it times on .* with 1 thread, and .* with 2 threads"):
            crew.start(describe())
    finally:
        crew.close()


def test_several_sizes_are_timed_on_a_node(data: Digits, address: str, tmp_path: Path) -> None:
    sizes = {"inputs": [{"batch": 1}, {"batch": 32, "weight": 0.5}]}
    result = tune(data, on(address, timing="node"), tmp_path, sizes)
    assert result.sizes == ("batch 1", "batch 32")
    fast, slow = result.trials[0].sizes_ms
    assert all(milliseconds > 0 for pair in (fast, slow) for milliseconds in pair)


def test_a_winner_in_another_form_is_looked_at_in_another_size_where_it_was_timed(
    data: Digits, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    # Which form is the fastest is not what is tried here.
    monkeypatch.setattr(Speedup, "beats", lambda self, rival: self is not rival)
    monkeypatch.setattr("octune.final.fastest_passing", lambda study, job: study.trials[-1])
    asked: list[str] = []
    ask = Crew.ask

    def noted(self: Crew, method: str, *arguments: Any) -> Any:
        asked.append(method)
        return ask(self, method, *arguments)

    monkeypatch.setattr(Crew, "ask", noted)
    settings = config(max_trials=1)
    settings["performance"] = {**settings["performance"], "compile": "auto", "compare_fp32": "never"}
    result = octune.tune(
        str(onnx_digits() / "fp32.onnx"),
        calibration=[batch.numpy() for batch in data.batches()],
        evaluation=[(inputs.numpy(), labels.numpy()) for inputs, labels in data.labelled(20)],
        metric="accuracy",
        config={**settings, "engine": on(address, timing="node"), "workspace": {"path": tmp_path}},
        progress=False,
    )
    assert len(result.trials) > 1
    assert asked.count("between") == 1, (asked, result.trials, result.notes)
    assert Journal.read(tmp_path).last("other size")["answer"] is not None
