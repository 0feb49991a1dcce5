"""A comparison as a table, a picture and plain data, without running anything."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from octune.benchmark.outcome import Bench, Row, Subject
from octune.cost.latency import Latency, Speedup
from octune.report.bench import bench_table, plot


def outcome(load: float = 0.0) -> Bench:
    def row(model: str, batch: int, ms: float, speed: Speedup | None) -> Row:
        return Row(model, batch, 128, Latency((ms, ms, 2 * ms)), batch * 1e3 / ms, 90.0, speed, load)

    rows = [
        row("bert.onnx", 1, 40.0, None),
        row("bert-int8", 1, 10.0, Speedup(4.0, 3.9, 4.1)),
        row("bert.onnx", 8, 300.0, None),
        row("bert-int8", 8, 300.0, Speedup(1.0, 0.95, 1.06)),
        Row("bert.onnx", 32, 128, error="too large"),
    ]
    models = [Subject("bert.onnx", "ONNX file", 90_000_000, "0 of 38", 1.0)]
    models.append(Subject("bert-int8", "Octune folder (onnx)", 23_000_000, None, 1.0))
    return Bench(models, rows, [(0,), (1,)], {"cpu": "a CPU"})


def test_the_table_says_everything_in_eighty_columns() -> None:
    console = Console(file=StringIO(), width=80, highlight=False)
    console.print(bench_table(outcome()))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    for part in (
        "4.00x [3.90, 4.10]",
        "no difference",
        "A  bert.onnx: ONNX file, 90.0 MB, 0 of 38 ops in int8",
        "B  bert-int8: Octune folder (onnx), 23.0 MB",
        "2 instances on 1 core each: 0, 1; a CPU",
        "A could not be timed at batch 32, 128 tokens: too large",
    ):
        assert part in text, text
    assert "busy" not in text


def test_a_busy_machine_is_said() -> None:
    assert "other processes took 40% of the CPU" in str(outcome(0.4))
    assert outcome(0.4).to_json()["busy"] == outcome(0.4).busy
    assert outcome().to_json()["busy"] is None


def test_plain_data_is_json() -> None:
    rows = json.loads(json.dumps(outcome().to_json(), allow_nan=False))["rows"]
    assert rows[1]["speedup"] == {"ratio": 4.0, "low": 3.9, "high": 4.1, "different": True}
    assert rows[4]["latency_ms"] is None
    assert rows[4]["error"] == "too large"


@pytest.mark.parametrize(("name", "begins"), [("bars.png", b"\x89PNG"), ("bars.svg", b"<?xml")])
def test_a_picture_is_drawn(name: str, begins: bytes, tmp_path: Path) -> None:
    plot(outcome(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
