"""Exported folders are read by what they are made for, and answer as ``octune.load`` does."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest

from octune import Result
from octune.backends.terms import Servable, Tensor
from octune.cli.export import export as command
from octune.errors import ArtifactError, ConfigError, UnsupportedError
from octune.export import LAYOUTS, export
from octune.export.triton import model_config
from octune.folders import sums
from tests.export.conftest import Feed


def onnx_answers(path: Path, sentences: Feed) -> npt.NDArray[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], sentences)[0])


def openvino_answers(path: Path, sentences: Feed, settings: dict[str, Any]) -> npt.NDArray[Any]:
    import openvino

    return np.asarray(openvino.Core().compile_model(str(path), "CPU", settings)(sentences)["logits"])


def triton_message(text: str) -> Any:
    """The text as Triton's own ModelConfig message, which refuses what the server would refuse."""
    from google.protobuf import text_format

    package = importlib.util.find_spec("tritonclient")
    if package is None or package.origin is None:
        pytest.skip("needs tritonclient, which holds Triton's protocol")
    # tritonclient.grpc itself imports grpc, which is not needed to read a file
    file = Path(package.origin).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return text_format.Parse(text, module.ModelConfig()), module


# -- the saved folder itself ---------------------------------------------------------------------------------


def test_a_saved_model_keeps_its_tokenizer(bert: Path, saved: Path) -> None:
    kept = {path.name for path in (saved / "huggingface").iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"} <= kept
    assert not any("safetensors" in name for name in kept)
    listed = json.loads((saved / "octune.json").read_text())["files"]
    assert {f"huggingface/{name}" for name in kept} <= set(listed)
    assert (saved / "huggingface/tokenizer.json").read_bytes() == (bert / "model/tokenizer.json").read_bytes()


def test_the_help_of_the_command_names_every_layout() -> None:
    option = get_type_hints(command, include_extras=True)["layout"].__metadata__[0]
    assert set(LAYOUTS) <= set(re.findall(r"\w+", option.help))


# -- servers -------------------------------------------------------------------------------------------------


def test_triton(saved: Path, sentences: Feed, answers: npt.NDArray[Any], tmp_path: Path) -> None:
    written = export(saved, "triton", tmp_path)
    assert written == tmp_path / "sentiment"
    np.testing.assert_array_equal(onnx_answers(written / "1/model.onnx", sentences), answers)
    config, protocol = triton_message((written / "config.pbtxt").read_text())
    assert (config.name, config.backend) == ("sentiment", "onnxruntime")
    assert {item.name: (item.data_type, list(item.dims)) for item in config.input} == {
        name: (protocol.TYPE_INT64, [-1]) for name in sentences
    }
    assert [(item.name, list(item.dims)) for item in config.output] == [("logits", [2])]
    assert config.max_batch_size > 1
    assert config.HasField("dynamic_batching")
    manifest = json.loads((saved / "octune.json").read_text())
    threads = config.parameters["intra_op_thread_count"].string_value
    assert int(threads) == manifest["environment"]["threads"]


def test_triton_batches_only_what_has_a_batch() -> None:
    fixed = Servable({}, [Tensor("x", "float32", (1, 3, 8, 8))], [Tensor("y", "float32", (1, 10))])
    config, _ = triton_message(model_config("net", fixed, 2))
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [1, 3, 8, 8]
    scalar = Servable({}, [Tensor("x", "int64", ())], [Tensor("y", "float32", (None,))])
    config, _ = triton_message(model_config("net", scalar, 2))
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")


def test_openvino_model_server(
    saved_openvino: Path, sentences: Feed, answers: npt.NDArray[Any], tmp_path: Path
) -> None:
    for name in ("first", "second", "first"):
        export(saved_openvino, "ovms", tmp_path, name=name, overwrite=True)
    models = json.loads((tmp_path / "config.json").read_text())["model_config_list"]
    assert [item["config"]["name"] for item in models] == ["second", "first"]
    config = models[0]["config"]
    path = tmp_path / config["base_path"] / "1" / "model.xml"
    # OpenVINO rounds at other places than ONNX Runtime, on which the answers were made
    got = openvino_answers(path, sentences, config["plugin_config"])
    np.testing.assert_allclose(got, answers, atol=0.2)
    assert got.argmax(1).tolist() == answers.argmax(1).tolist()


def test_openvino_model_server_takes_an_onnx_file(
    saved: Path, sentences: Feed, answers: npt.NDArray[Any], tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    written = export(saved, "ovms", tmp_path)
    got = openvino_answers(written / "1/model.onnx", sentences, {})
    assert got.argmax(1).tolist() == answers.argmax(1).tolist()


def test_hugging_face(
    saved_openvino: Path, sentences: Feed, answers: npt.NDArray[Any], tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoTokenizer

    written = export(saved_openvino, "hf", tmp_path / "hub")
    np.testing.assert_array_equal(onnx_answers(written / "onnx/model.onnx", sentences), answers)
    got = openvino_answers(written / "openvino/openvino_model.xml", sentences, {})
    assert got.argmax(1).tolist() == answers.argmax(1).tolist()
    assert AutoConfig.from_pretrained(str(written)).architectures == ["BertForSequenceClassification"]
    again = AutoTokenizer.from_pretrained(str(written))(["a lovely film"])
    assert again["input_ids"][0] == sentences["input_ids"][0][: len(again["input_ids"][0])].tolist()


def test_the_card_says_what_the_manifest_says(saved: Path, tmp_path: Path) -> None:
    card = (export(saved, "hf", tmp_path / "hub") / "README.md").read_text()
    manifest = json.loads((saved / "octune.json").read_text())
    for words in (f"{manifest['best']['score']['value']:.4f} [", manifest["safe_on"], manifest["verdict"]):
        assert words in card


def test_a_result_is_saved_in_a_layout(
    tuned: Result, sentences: Feed, answers: npt.NDArray[Any], tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    written = tuned.save(tmp_path / "hub", layout="hf")
    assert "<svg" in (written / "report.html").read_text()
    np.testing.assert_array_equal(onnx_answers(written / "onnx/model.onnx", sentences), answers)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "onnx" in LAYOUTS[name].formats])
def test_every_file_has_its_sum(layout: str, saved: Path, tmp_path: Path) -> None:
    written = export(saved, layout, tmp_path / "out")
    record = json.loads((written / "octune-export.json").read_text())
    assert record["files"] == {k: v for k, v in sums(written).items() if k != "octune-export.json"}


# -- what cannot be done is refused --------------------------------------------------------------------------


def test_refusals_leave_nothing_behind(saved: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(saved, bare)
    shutil.rmtree(bare / "huggingface")
    manifest = bare / "octune.json"
    with pytest.raises(ArtifactError, match="missing"):  # its files are listed, and some are gone
        export(bare, "hf", tmp_path / "out")
    assert manifest.exists()
    with pytest.raises(ConfigError, match="hf, triton, ovms"):
        export(saved, "tritn", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"Got '\.\./up'"):
        export(saved, "triton", tmp_path / "out", name="../up")
    with pytest.raises(ConfigError, match="not a Hugging Face folder"):
        export(saved, "hf", tmp_path / "out", huggingface=tmp_path)
    with pytest.raises(ArtifactError, match="not a saved model"):
        export(tmp_path, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(saved: Path, tmp_path: Path) -> None:
    export(saved, "triton", tmp_path)
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        export(saved, "triton", tmp_path)
    export(saved, "triton", tmp_path, overwrite=True)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/text").write_text("three years of work")
    with pytest.raises(ArtifactError, match="not overwritten"):
        export(saved, "triton", tmp_path, name="thesis", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentiment", "thesis"]


def test_a_model_without_a_tokenizer_can_be_given_one(bert: Path, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    import octune

    weight = np.eye(4, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    batches = [np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)] * 2
    result = octune.tune(path, calibration=batches, config={"performance": {"iterations": 2}})
    folder = result.save(tmp_path / "saved")
    with pytest.raises(UnsupportedError, match="--huggingface"):
        export(folder, "hf", tmp_path / "hub")
    assert not (tmp_path / "hub").exists()
    assert (export(folder, "hf", tmp_path / "hub", huggingface=bert / "model") / "config.json").exists()
