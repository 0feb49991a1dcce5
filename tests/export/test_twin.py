"""A PyTorch model is exported as its twin in ONNX: the same plan, scored before it is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import octune
from octune import Op, Plan, Result, Scheme
from octune.backends.torch.to_onnx import module_of
from octune.cli import app
from octune.errors import ArtifactError, CriterionError, UnsupportedError
from octune.export import export
from octune.same_plan import same_plan
from tests.export.conftest import Feed, configuration
from tests.export.test_layouts import onnx_answers

STATIC, DYNAMIC, WEIGHT = Scheme.int8(), Scheme.int8("dynamic"), Scheme.int8("weight")


@pytest.fixture(scope="module")
def torch_result(bert: Path) -> Result:
    result = octune.tune(config=configuration(bert))
    assert result.plan.names("int8")
    return result


@pytest.fixture(scope="module")
def torch_folder(torch_result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_result.save(tmp_path_factory.mktemp("torch") / "sentiment")


@pytest.mark.parametrize(
    ("node", "module"),
    [
        ("/bert/encoder/layer.0/attention/self/query/MatMul", "bert.encoder.layer.0.attention.self.query"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/features/features.1/conv/conv.0/conv.0.0/Conv", "features.1.conv.0.0"),
        ("/fc/Gemm", "fc"),
        ("MatMul_3", ""),
    ],
)
def test_nodes_are_known_by_their_modules(node: str, module: str) -> None:
    assert module_of(node) == module


def test_ops_get_the_scheme_of_what_they_stand_for() -> None:
    plan = Plan(
        {
            "a": Scheme.int8(range_method="mse"),
            "b": DYNAMIC,
            "table": WEIGHT,
            "c": Scheme.fp32(),
            "gone": STATIC,
        }
    )
    offered = (STATIC, Scheme.int8(range_method="mse"), Scheme.fp32())
    ops = [Op(f"/{name}/X", "linear", offered) for name in "abc"]
    ops.append(
        Op("/table/Gather", "embedding", (Scheme.int8("weight", granularity="per_tensor"), Scheme.fp32()))
    )
    ops.append(Op("/attention/MatMul", "attention", offered))
    twin, missing = same_plan(plan, ops, module_of)
    assert dict(twin) == {
        "/a/X": Scheme.int8(range_method="mse"),
        "/b/X": Scheme.fp32(),  # it cannot be dynamic there
        "/c/X": Scheme.fp32(),
        "/table/Gather": Scheme.int8("weight", granularity="per_tensor"),
        "/attention/MatMul": Scheme.fp32(),  # was not in the plan
    }
    assert missing == ["b", "gone"]
    assert not same_plan(plan, ops[:1], module_of, calibrated=False)[0].names("int8")


def test_a_torch_result_is_saved_as_its_twin(
    torch_result: Result, torch_folder: Path, sentences: Feed, tmp_path: Path
) -> None:
    written = torch_result.save(tmp_path / "hub", layout="hf")
    model = octune.load(torch_folder)
    import torch

    with torch.inference_mode():
        own = model(**{name: torch.as_tensor(array) for name, array in sentences.items()}).logits.numpy()
    twin = onnx_answers(written / "onnx/model.onnx", sentences)
    np.testing.assert_allclose(twin, own, atol=0.2)  # other kernels round at other places
    assert not np.array_equal(twin, own)
    card = (written / "README.md").read_text()
    assert torch_result.plan.digest in card
    assert "Twin of a pytorch model" in card
    import onnx

    nodes = [node.op_type for node in onnx.load(str(written / "onnx/model.onnx")).graph.node]
    assert "QuantizeLinear" in nodes  # static int8, not only its weights


def test_a_saved_folder_needs_the_fp32_model(torch_folder: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="--model, --task and --data"):
        export(torch_folder, "triton", tmp_path)
    assert not list(tmp_path.iterdir())
    written = export(torch_folder, "triton", tmp_path, config=configuration(bert))
    record = json.loads((written / "octune-export.json").read_text())
    assert record["score"]["n"] == 96
    with pytest.raises(ArtifactError, match="not empty"):  # said before it is made again
        export(torch_folder, "triton", tmp_path, model="no/such/model")


def test_the_command_makes_the_twin(torch_folder: Path, bert: Path, tmp_path: Path) -> None:
    given = ["export", str(torch_folder), "--layout", "triton", "--output", str(tmp_path), "--task", "sst-2"]
    given += ["--model", str(bert / "model"), "--data", str(bert / "glue"), "--json"]
    done = CliRunner().invoke(app, [*given, "--criterion", "10%"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"layout": "triton", "written_to": str(tmp_path / "sentiment")}
    gain = CliRunner().invoke(app, [*given, "--name", "better", "--criterion", "-50%"])
    assert gain.exit_code == 1
    assert "nothing was written" in gain.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentiment"]


def test_without_a_metric_the_twin_must_agree(torch_folder: Path, bert: Path, tmp_path: Path) -> None:
    from octune.tasks import load_task

    data = load_task("sst-2", bert / "glue", tokenizer=str(bert / "model"))
    inputs: list[Any] = [batch for batch, _ in data.evaluation]
    written = export(
        torch_folder, "triton", tmp_path, model=str(bert / "model"), calibration=inputs, criterion="10%"
    )
    assert (written / "1/model.onnx").exists()


def test_a_twin_that_fails_is_not_written(torch_result: Result, tmp_path: Path) -> None:
    saving = torch_result.saving
    assert saving is not None
    assert saving.request is not None
    demanding = replace(saving.request, criterion={"absolute": -0.5})  # a gain of half the score
    strict = replace(torch_result, saving=replace(saving, request=demanding))
    with pytest.raises(CriterionError, match=r"model\.target: onnx"):
        strict.save(tmp_path / "hub", layout="hf")
    assert not (tmp_path / "hub").exists()
