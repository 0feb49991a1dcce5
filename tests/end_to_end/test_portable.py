"""Models that were tuned on one kind of CPU and are loaded on another: they give exact sums there, or it is
said that they do not.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import octune
from octune.backends import Settings, backend_for
from octune.backends.torch.layers import Int8Layer
from octune.errors import ArtifactError
from octune.int8 import ANYWHERE, NEEDS_EXACT
from octune.machine import Machine, pretending
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated
from tests.digits import SIZE, Digits, network
from tests.machines import AMX, AVX2, VNNI
from tests.pairs import largest_pairs

REFUSED = (
    r"tuned for .*VNNI.*a CPU with AVX2.* would overflow.*performance\.portable: true.*allow_saturation=True"
)


def config(*, portable: bool) -> dict[str, Any]:
    return {**SIZE, "performance": {**SIZE["performance"], "portable": portable}}


def tuned(model: Any, calibration: Any, machine: Machine, folder: Path, *, portable: bool) -> Path:
    """The folder of a model with every op in int8: whatever it scores, and wherever this runs, it is good
    enough.
    """
    with pretending(machine):
        result = octune.tune(
            model, calibration=calibration, evaluate=lambda model: 1.0, config=config(portable=portable)
        )
        assert len(result.plan.names("int8")) == len(result.plan)
        return result.save(folder)


def safe_on(folder: Path) -> str:
    found = json.loads((folder / "octune.json").read_text())["safe_on"]
    assert isinstance(found, str)
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "octune" and record.levelno >= logging.WARNING
    ]


# -- PyTorch: layers whose weights can be made anew ----------------------------------------------------------


def pairs(model: nn.Module) -> int:
    return max(
        int(largest_pairs(m.weight_int8.numpy()).max()) for m in model.modules() if isinstance(m, Int8Layer)
    )


@pytest.fixture(scope="module")
def full(data: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose weights use all of their 8 bits."""
    folder = tuned(
        data.model(), data.batches(), VNNI, tmp_path_factory.mktemp("full") / "model", portable=False
    )
    assert safe_on(folder) == NEEDS_EXACT
    return folder


def close(model: Callable[[torch.Tensor], torch.Tensor], data: Digits) -> bool:
    with torch.inference_mode():
        wanted, got = data.model()(data.test), model(data.test)
    return bool((got - wanted).abs().mean() < 0.05 * wanted.abs().mean())


def test_weights_are_made_smaller_where_their_sums_would_overflow(
    full: Path, data: Digits, caplog: pytest.LogCaptureFixture
) -> None:
    with pretending(AVX2):
        model = octune.load(full, factory=network)
    assert pairs(model) <= 128
    assert close(model, data)
    (warning,) = warnings(caplog)
    assert re.search(
        r"tuned for x86-64 CPUs with VNNI or AMX.*\(a CPU with AVX2\).*made smaller.*may differ", warning
    )


def test_so_are_those_of_a_program_that_is_loaded_without_its_class(
    full: Path, data: Digits, caplog: pytest.LogCaptureFixture
) -> None:
    assert (full / "program.pt2").exists()
    with pretending(AVX2):
        program, layers = octune.load(full), octune.load(full, factory=network)
    assert not any(isinstance(module, Int8Layer) for module in program.modules())
    assert close(program, data)
    with torch.inference_mode():
        torch.testing.assert_close(program(data.test), layers(data.test))
        unlimited = octune.load(full, factory=network, allow_saturation=True)
        assert not torch.equal(program(data.test), unlimited(data.test))
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize(("machine", "allowed"), [(VNNI, False), (AVX2, True)], ids=["exact", "allowed"])
def test_else_they_stay_as_they_are(
    full: Path, machine: Machine, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with pretending(machine):
        model = octune.load(full, factory=network, allow_saturation=allowed)
    assert pairs(model) > 128
    assert not warnings(caplog)


@pytest.mark.parametrize("machine", [VNNI, AVX2], ids=lambda machine: machine.generation)
def test_a_portable_model_goes_anywhere_in_silence(
    machine: Machine, data: Digits, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tuned(data.model(), data.batches(), machine, tmp_path / "model", portable=True)
    assert safe_on(folder) == ANYWHERE
    caplog.clear()
    for other in (AVX2, VNNI):
        with pretending(other):
            assert 0 < pairs(octune.load(folder, factory=network)) <= 128
    assert not warnings(caplog)


def test_on_an_old_cpu_weights_are_safe_whatever_was_asked_for(data: Digits, tmp_path: Path) -> None:
    folder = tuned(data.model(), data.batches(), AVX2, tmp_path / "model", portable=False)
    assert safe_on(folder) == ANYWHERE


def test_a_model_from_before_this_was_known_counts_as_unsafe(
    full: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from octune import artifact

    old = tmp_path / "old"
    old.mkdir()
    for file in full.iterdir():
        (old / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((old / "octune.json").read_text())
    del manifest["safe_on"]
    (old / "octune.json").write_text(json.dumps(manifest | {"digest": artifact._digest(manifest)}))
    with pretending(AVX2):
        assert pairs(octune.load(old, factory=network)) <= 128
    assert "made smaller" in caplog.text


# -- graph files, whose weights stay as they are -------------------------------------------------------------


def alternating(inputs: int, outputs: int) -> np.ndarray[Any, Any]:
    """Weights whose neighbours have different signs: they add up exactly on the CPU that runs this test, too,
    whatever it is.
    """
    signs = np.where(np.arange(inputs) % 2, -1, 1)[:, None]
    return (signs * np.random.default_rng(0).uniform(0.1, 1, (inputs, outputs))).astype(np.float32)


def onnx_subject() -> Any:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "one product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(alternating(64, 32), "w")],
    )
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tensorflow_subject() -> Any:
    tf = pytest.importorskip("tensorflow")
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], name="x")
        tf.matmul(x, tf.constant(alternating(64, 32)), name="product")
    return graph


@pytest.mark.parametrize("subject", [onnx_subject, tensorflow_subject], ids=["onnx", "tensorflow"])
def test_a_graph_is_refused_where_its_sums_would_overflow(
    subject: Callable[[], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [np.random.default_rng(0).random((4, 64), np.float32)]
    folder = tuned(subject(), batches, VNNI, tmp_path / "model", portable=False)
    assert safe_on(folder) == NEEDS_EXACT
    caplog.clear()
    with pretending(AVX2), pytest.raises(ArtifactError, match=REFUSED):
        octune.load(folder)
    with pretending(VNNI):
        octune.load(folder)
    assert not warnings(caplog)
    with pretending(AVX2):
        assert octune.load(folder, allow_saturation=True) is not None
    assert "overflow" not in caplog.text


@pytest.mark.parametrize("subject", [onnx_subject, tensorflow_subject], ids=["onnx", "tensorflow"])
def test_a_portable_graph_is_not(
    subject: Callable[[], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [np.random.default_rng(0).random((4, 64), np.float32)]
    folder = tuned(subject(), batches, VNNI, tmp_path / "model", portable=True)
    assert safe_on(folder) == ANYWHERE
    with pretending(AVX2):
        assert octune.load(folder) is not None
    assert "overflow" not in caplog.text


def test_layers_of_other_number_formats_are_left_alone(data: Digits, tmp_path: Path) -> None:
    with pretending(AMX):
        backend = backend_for(data.model(), Settings(portable=False))
        ranges = calibrated(backend, data.batches())
        plan = Plan({"0": Scheme.int8(), "2": Scheme.bf16()})
        metadata = backend.writer()(backend.apply(plan, ranges), tmp_path)
    program = type(backend).load(tmp_path, metadata, limit_again=True)
    assert close(program, data)
