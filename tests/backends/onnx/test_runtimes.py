"""A runtime is one object: a new one is a class, and plans, saving and loading know it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from octune.backends.onnx import backend as backend_module
from octune.backends.onnx import runtimes, storage
from octune.backends.onnx.backend import OnnxBackend
from octune.backends.onnx.graph import Model
from octune.backends.onnx.runtimes import RUNTIMES, OnnxModel, Runtime
from octune.backends.onnx.runtimes.base import Port
from octune.backends.onnx.source import open_model
from octune.backends.opened import Source
from octune.backends.terms import Settings
from octune.calibration import Ranges
from octune.engine.forms import FLOAT_PRECISION
from octune.harm.probe import largest_change
from octune.machine import pretending, probe_machine
from octune.plan import Plan
from tests.backends.contract import calibrated, int8_plan
from tests.backends.onnx.graphs import Chain, inputs
from tests.backends.onnx.models import bert, cnn


class Reference(Runtime):
    """The evaluator that comes with the onnx package."""

    name = "reference"
    title = "onnx.reference"
    package = "onnx"
    form = "reference"
    signed_activations = False

    def build(self, graph: Model, threads: int | None) -> OnnxModel:
        return ReferenceModel(graph, graph.whole())

    def write(self, model: OnnxModel, folder: Path) -> None:
        (folder / "reference.txt").write_text("its own form")

    def files(self, folder: Path) -> list[Path]:
        return [folder / "reference.txt"]

    def read(self, file: Path, threads: int | None) -> OnnxModel:
        assert file.with_name("reference.txt").read_text() == "its own form"
        return ReferenceModel(None, onnx.load(file))


class ReferenceModel(OnnxModel):
    runtime = Reference.name

    def __init__(self, graph: Model | None, proto: onnx.ModelProto) -> None:
        def ports(items: Any) -> list[Port]:
            return [Port(item.name, "", []) for item in items]

        super().__init__(graph, ports(proto.graph.input), ports(proto.graph.output))
        proto.opset_import[0].version = 21  # it knows Q/DQ nodes of newer opsets only; these mean the same
        self.proto, self._evaluator = proto, ReferenceEvaluator(proto)

    def _run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        return list(self._evaluator.run(outputs, feed))

    def fresh(self) -> OnnxModel:
        return ReferenceModel(self.graph, self.proto)


@pytest.fixture
def with_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runtimes, storage, backend_module):
        monkeypatch.setattr(module, "RUNTIMES", (RUNTIMES[0], Reference()))


@pytest.mark.usefixtures("with_reference")
def test_a_new_runtime_is_offered_the_winner_saved_and_loaded(tmp_path: Path) -> None:
    backend = OnnxBackend(Chain(width=64).add("plain").add("gemm").model(), Settings())
    x = inputs(width=64)
    ranges, feed = calibrated(backend, [x]), backend.split(x)[0]
    plan = int8_plan(backend, ranges)
    (finalist,) = backend.finalists(plan, ranges, feed)
    assert finalist.form == "reference"
    for forms, made in {("native",): [], ("openvino",): [], ("native", "reference"): ["reference"]}.items():
        asked = OnnxBackend(Chain(width=64).add("plain").add("gemm").model(), Settings(forms=forms))
        assert [form.form for form in asked.finalists(plan, ranges, feed)] == made
    wanted = backend.run(backend.apply(plan, ranges), feed)
    metadata = backend.writer()(finalist.model, tmp_path)
    assert metadata["runtime"] == "reference"
    loaded = backend.load(tmp_path, metadata)
    assert isinstance(loaded, ReferenceModel)
    for got in (backend.run(finalist.model, feed), backend.run(loaded, feed)):
        for name in wanted:
            np.testing.assert_allclose(got[name], wanted[name], atol=0.05 * np.abs(wanted[name]).max())


def test_a_model_of_a_runtime_that_is_not_there_runs_on_onnx_runtime(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = OnnxBackend(Chain(width=64).add("plain").model(), Settings())
    x = inputs(width=64)
    ranges = calibrated(backend, [x])
    plan = int8_plan(backend, ranges)
    metadata = backend.writer()(backend.apply(plan, ranges), tmp_path)
    loaded = backend.load(tmp_path, {**metadata, "runtime": "unheard of"})
    assert loaded.runtime == "onnxruntime"
    assert "tuned for unheard of, which is not installed: ONNX Runtime is used" in caplog.text


@pytest.mark.parametrize("bf16", [False, True])
def test_float_is_offered_in_fp32_and_in_bf16_where_the_cpu_has_it(tmp_path: Path, bf16: bool) -> None:
    if bf16 and not probe_machine().bf16:
        pytest.skip("this CPU only emulates bf16")
    features = probe_machine().features if bf16 else ("avx2",)
    backend = OnnxBackend(Chain(width=64).add("plain").add("gemm").model(), Settings())
    feed = backend.split(inputs(width=64))[0]
    with pretending(replace(probe_machine(), features=features)):
        found = {form.form: form.model for form in backend.finalists(Plan(), Ranges(), feed)}
    assert set(found) == {"openvino", "openvino-bf16"} if bf16 else {"openvino"}
    assert set(found) <= backend.fp32_forms
    wanted = [backend.run(backend.fp32_model(), feed)]
    assert largest_change(wanted, [backend.run(found["openvino"], feed)]) < FLOAT_PRECISION
    if bf16:
        made = backend.run(found["openvino-bf16"], feed)
        assert FLOAT_PRECISION < largest_change(wanted, [made]) < 0.1
        loaded = backend.load(tmp_path, backend.writer()(found["openvino-bf16"], tmp_path))
        for name, array in backend.run(loaded, feed).items():
            np.testing.assert_array_equal(array, made[name])


def test_harms_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = OnnxBackend(Chain(width=64).add("plain").add("gemm").model(), Settings())
    x = inputs(width=64)
    ranges = calibrated(backend, [x])
    candidates = {op.name: op.schemes for op in backend.ops()}
    first = backend.harm(candidates, ranges, [backend.split(x)[0]])
    ticks = iter(np.arange(1e9, 2e9, 1e3))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))  # every look at the clock is 1000 s later
    assert backend.harm(candidates, ranges, [backend.split(x)[0]]) == first


def test_all_runtimes_say_the_same_of_inputs_and_outputs() -> None:
    graph, _ = open_model(bert())
    first, *others = (runtime.build(graph, 1) for runtime in RUNTIMES if runtime.installed())
    for other in others:
        assert other.get_inputs() == first.get_inputs()
        assert [(port.name, port.type) for port in other.get_outputs()] == [
            (port.name, port.type) for port in first.get_outputs()
        ]
        assert OnnxBackend.opened(other, Source("model", "bert")).inputs[0].dtype == np.int64


SIGNALLED = """
import signal, sys, time
from octune.opening import open_model

first, second = open_model(sys.argv[1]), open_model(sys.argv[1])
del first
del second
rang = []
signal.signal(signal.SIGALRM, lambda *about: rang.append(about))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.1)
assert rang
"""


def test_a_signal_after_openvino_models_are_gone(tmp_path: Path) -> None:
    """Ctrl-C and limits of time are signals. A process of its own: a crash would end this one."""
    openvino = pytest.importorskip("openvino")
    onnx.save(cnn(), tmp_path / "model.onnx")
    openvino.save_model(openvino.convert_model(tmp_path / "model.onnx"), tmp_path / "model.xml")
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "model.xml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
