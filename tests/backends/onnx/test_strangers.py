"""ONNX files of strangers: data outside of their folder is not read, ops of libraries do not load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octune
from octune.errors import ModelError
from octune.opening import open_model as open_any
from tests.forged import forged

X = np.linspace(-1, 1, 4 * 16, dtype=np.float32).reshape(4, 16)
W = np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8)


def model(path: Path) -> Path:
    """A product with a weight, which is also in a graph of a branch."""
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(W[:1], "inner"))],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, (1, 8))],
    )
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["d"], value=numpy_helper.from_array(W[1:2], "other"))],
        "other",
        [],
        [helper.make_tensor_value_info("d", TensorProto.FLOAT, (1, 8))],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["flag"], ["b"], then_branch=branch, else_branch=other),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (None, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (None, 8))],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.array(True), "flag")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, str(path))
    return path


def external(tensor: TensorProto, location: str) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def weight(proto: Any, location: str) -> None:
    external(proto.graph.initializer[0], location)


def inner(proto: Any, location: str) -> None:
    node = next(node for node in proto.graph.node if node.op_type == "If")
    external(node.attribute[0].g.node[0].attribute[0].t, location)


def edited(path: Path, edit: Callable[[Any, str], None], location: str) -> None:
    proto = onnx.load(str(path))
    edit(proto, location)
    path.write_bytes(proto.SerializeToString())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    W.tofile(path)
    return path


@pytest.mark.parametrize("edit", [weight, inner])
@pytest.mark.parametrize("kind", ["relative", "absolute", "link"])
def test_data_outside_is_not_read(tmp_path: Path, secret: Path, edit: Any, kind: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = model(folder / "m.onnx")
    (folder / "here").symlink_to(secret)
    edited(path, edit, {"relative": "../secret", "absolute": str(secret), "link": "here"}[kind])
    with pytest.raises(ModelError, match="outside the model's folder"):
        open_any(path)
    with pytest.raises(ModelError, match="outside the model's folder"):
        octune.quantize(str(path), calibration=[X])


def test_a_saved_folder_does_not_read_it_either(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = octune.save(octune.quantize(str(model(tmp_path / "m.onnx")), calibration=[X]), tmp_path / "saved")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert octune.load(saved).run(None, {"x": X})[0].shape == (4, 8)
    folder = forged(saved, tmp_path, lambda folder, data: edited(folder / "model.onnx", weight, "../secret"))
    with pytest.raises(ModelError, match="outside the model's folder"):
        octune.load(folder)


def test_ops_of_a_library_are_not_loaded(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx")

    def custom(proto: Any, location: str) -> None:
        proto.graph.node[0].domain = "hostile"
        proto.opset_import.add(domain="hostile", version=1)
        proto.metadata_props.add(key="custom_op_library", value=location)

    edited(path, custom, str(tmp_path / "hostile.so"))
    with pytest.raises(ModelError, match="cannot load"):
        open_any(path)
