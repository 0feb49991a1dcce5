"""Models timed in processes of their own: pinned, in turns, and what is said of them."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import octune
from octune.benchmark.instance import Instance, ask_all
from octune.cli import app
from octune.errors import ConfigError, DataError, OctuneError
from octune.opening import open_model
from octune.pinning import placed, threads_of
from tests.digits import config, digits


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


# -- pinning -------------------------------------------------------------------------------------------------


def test_every_instance_has_cores_of_its_own(two_cores: list[int]) -> None:
    assert placed(2, 1) == [(core,) for core in two_cores]
    assert placed() == placed(1, 2) == [tuple(two_cores)]
    assert placed(2) == placed(2, 1)
    assert threads_of(2)["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(("instances", "cores"), [(3, 1), (1, 3), (3, None), (0, None), (0, 1), (1, 0)])
def test_too_many_cores_are_an_error(two_cores: list[int], instances: int, cores: int | None) -> None:
    with pytest.raises(ConfigError, match="cores"):
        placed(instances, cores)


def test_instances_are_pinned_with_all_their_threads(two_cores: list[int], onnx_file: str) -> None:
    first, second = (Instance(onnx_file, place) for place in placed(2, 1))
    with closing(first), closing(second):
        opened = ask_all([first, second], "open")
        assert [answer["cores"] for answer in opened] == [[core] for core in two_cores]
        affinities = [psutil.Process(one._process.pid).cpu_affinity() for one in (first, second)]
        assert affinities == [[core] for core in two_cores]


def test_two_instances_do_the_work_of_two(two_cores: list[int], onnx_file: str) -> None:
    outcome = octune.bench([onnx_file], instances=2, cores=1, seconds=0.3, batch=64)
    assert outcome.cores == [(core,) for core in two_cores]
    assert outcome.to_json()["instances"] == 2
    row = outcome.rows[0]
    assert row.latency is not None
    each = 64 * 1e3 / row.latency.median_ms
    assert 0.1 < row.throughput / (2 * each) < 2  # the median forgets when another process had the core


# -- numbers -------------------------------------------------------------------------------------------------


def test_throughput_is_that_of_a_plain_loop(onnx_file: str) -> None:
    row = octune.bench([onnx_file], batch=256, seconds=0.5).rows[0]
    images = np.resize(digits().test.numpy(), (256, 64))
    with closing(open_model(onnx_file)) as model:
        inputs, _ = model.split({"x": images})
        model.run(inputs)
        calls, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < 0.5:
            model.run(inputs)
            calls += 1
        plain = 256 * calls / (time.perf_counter() - begun)
    assert 0.2 < row.throughput / plain < 5  # other processes come and go


def test_two_copies_of_one_model_are_no_different(onnx_file: str) -> None:
    outcome = octune.bench([onnx_file, onnx_file], seconds=0.5, batch=512)
    first, second = outcome.rows
    assert first.speed is None
    assert second.model == f"{onnx_file} (2)"
    assert second.speed is not None
    assert not second.speed.different, second.speed
    assert second.comparison.startswith("no difference [")
    assert "no difference" in str(outcome)


def test_a_model_that_does_more_is_slower(onnx_file: str) -> None:
    row = octune.bench([onnx_file, "tests.benchmark.factories:large"], seconds=0.3, batch=32).rows[1]
    assert row.speed is not None
    assert row.speed.ratio < 0.5
    assert row.memory_mb > 10  # its weights


@pytest.mark.slow
def test_every_kind_of_model_side_by_side(
    onnx_file: str, hugging_face: str, saved: str, saved_model: str
) -> None:
    outcome = octune.bench([onnx_file, hugging_face, saved, saved_model], sequence=None, iterations=2)
    assert [model.kind for model in outcome.models] == [
        "ONNX file",
        "Hugging Face folder",
        "Octune folder (pytorch)",
        "SavedModel",
    ]
    assert all(row.latency is not None and row.latency.runs >= 2 for row in outcome.rows)


def test_a_sweep_times_every_size_at_every_model(hugging_face: str) -> None:
    heard: list[str] = []
    outcome = octune.bench(
        [hugging_face], batch=(4, 1), sequence=(32, 16, 128), iterations=1, say=heard.append
    )
    sizes = [(row.batch, row.sequence) for row in outcome.rows]
    assert sizes == [(batch, length) for batch in (1, 4) for length in (16, 32, 128)]
    too_long = [row for row in outcome.rows if row.sequence == 128]
    assert all(row.error is not None and row.latency is None for row in too_long)  # it has 64 positions
    assert "could not be timed at batch 1, 128 tokens" in str(outcome)
    assert heard[0].startswith("opening")
    assert "timing batch 4, sequence 32" in heard


# -- inputs --------------------------------------------------------------------------------------------------


def test_data_of_a_file_is_used(onnx_file: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=digits().test[:3].numpy(), label=np.zeros(3))
    outcome = octune.bench([onnx_file], data=tmp_path / "rows.npz", batch=8, iterations=1)
    assert outcome.rows[0].batch == 8
    np.savez(tmp_path / "wrong.npz", x=np.zeros((3, 65), np.float32))
    with pytest.raises(DataError, match="65"):
        octune.bench([onnx_file], data=tmp_path / "wrong.npz", iterations=1)


def test_a_model_that_does_not_say_what_it_takes_needs_data() -> None:
    with pytest.raises(OctuneError, match=r"--data FILE\.npz"):
        octune.bench(["tests.benchmark.factories:secretive"], iterations=1)


# -- the command ---------------------------------------------------------------------------------------------


def test_json_has_one_object_with_all_numbers(onnx_file: str, tmp_path: Path) -> None:
    done = run(onnx_file, onnx_file, "--iterations", "3", "--json", "--plot", str(tmp_path / "bars.svg"))
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"models", "rows", "instances", "cores", "load", "busy", "machine"}
    assert set(found["models"][0]) == {"name", "kind", "size", "coverage", "open_seconds"}
    first, second = found["rows"]
    assert set(first) == {
        "model", "batch", "sequence", "error", "latency_ms", "throughput", "memory_mb", "speedup", "load",
    }  # fmt: skip
    assert set(first["latency_ms"]) == {"median", "p90", "p99", "calls"}
    assert first["latency_ms"]["median"] <= first["latency_ms"]["p90"] <= first["latency_ms"]["p99"]
    assert first["speedup"] is None
    assert set(second["speedup"]) == {"ratio", "low", "high", "different"}
    assert "opening" in done.stderr
    assert "<svg" in (tmp_path / "bars.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.onnx"], "There is no file nowhere.onnx"),
        (["x.onnx", "--batch", "1,two"], "--batch must be a whole number"),
        (["x.onnx", "--batch", "0"], "batch must be one or more whole numbers >= 1"),
        (["x.onnx", "--plot", "bars.gif"], "--plot draws a .png or .svg file"),
        (["x.onnx", "--plot", "nowhere/bars.png"], "nowhere does not exist"),
        (["x.onnx", "--data", "nowhere.npz"], "There is no file nowhere.npz"),
        (["x.onnx", "--data", "x.npz", "--sequence", "8"], "sequence cannot be given as well"),
        (["x.onnx", "--cores", "1000"], "1000 cores"),
        (["x.onnx", "--instances", "0"], "must be at least 1. Got 0 instances"),
        (["x.onnx", "--iterations", "0"], "iterations at least 1"),
        (["a.yaml", "b.yaml"], "One .yaml file says how to time"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, OctuneError)
    assert says in str(done.exception)


# -- a configuration -----------------------------------------------------------------------------------------


def test_lpot_says_instances_cores_and_batch(two_cores: list[int], onnx_file: str, tmp_path: Path) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(
        "model: {name: digits, framework: onnxrt_integerops}\n"
        "evaluation:\n"
        "  performance:\n"
        "    warmup: 2\n"
        "    iteration: 3\n"
        "    configs: {cores_per_instance: 1, num_of_instance: 2}\n"
        "    dataloader: {batch_size: 8}\n"
    )
    done = run(str(conf), onnx_file, "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert found["cores"] == [[core] for core in two_cores]
    (row,) = found["rows"]
    assert row["batch"] == 8
    assert row["latency_ms"]["calls"] % (2 * 3) == 0  # measured again on a busy machine


def test_a_configuration_names_the_first_model_and_the_data(onnx_file: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=digits().test[:3].numpy(), label=np.zeros(3))
    outcome = octune.bench(
        [onnx_file],
        config={
            "model": {"path": onnx_file},
            "evaluation": {"data": {"arrays": str(tmp_path / "rows.npz")}},
            "performance": {"iterations": 2, "batch_size": 4},
        },
        batch=2,
    )
    assert [model.name for model in outcome.models] == [onnx_file, f"{onnx_file} (2)"]
    assert [row.batch for row in outcome.rows] == [2, 2]  # arguments win
    assert all(row.latency is not None and row.latency.runs % 2 == 0 for row in outcome.rows)


def test_tuning_times_one_instance_and_says_so() -> None:
    data = digits()
    result = octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluate=data.accuracy,
        config={**config(), "performance": {**config()["performance"], "num_of_instance": 2}},
        progress=False,
    )
    assert any("octune bench" in note for note in result.notes)
