"""The schema: defaults, the ways a value may be written, what goes together, and use from Python."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from octune.config import Config, DataSource, OpOptions, TensorOptions, parse_config
from octune.errors import ConfigError

DEFAULTS = {
    "model": None,
    "device": "cpu",
    "calibration.data": None,
    "calibration.samples": (128,),
    "calibration.batches": None,
    "calibration.batch_size": 8,
    "evaluation.data": None,
    "evaluation.metric": None,
    "evaluation.metric_options": {},
    "evaluation.batch_size": 32,
    "evaluation.samples": None,
    "evaluation.outputs": (),
    "evaluation.postprocess": None,
    "quantization.approach": "auto",
    "quantization.weight": TensorOptions(),
    "quantization.activation": TensorOptions(),
    "quantization.ops": {},
    "criterion.relative": 0.01,
    "criterion.absolute": None,
    "criterion.higher_is_better": None,
    "criterion.confidence": None,
    "criterion.certify": None,
    "tuning.strategy": "auto",
    "tuning.timeout": 0,
    "tuning.max_trials": 100,
    "tuning.trial_timeout": 0,
    "tuning.random_seed": 1978,
    "tuning.objective": "performance",
    "tuning.performance_only": False,
    "tuning.isolate": False,
    "tuning.tensorboard": False,
    "tuning.mlflow": False,
    "performance.warmup": 5,
    "performance.iterations": None,
    "performance.threads": None,
    "performance.batch_size": None,
    "performance.compile": "auto",
    "performance.compare_fp32": "auto",
    "performance.inputs": None,
    "performance.objective": "latency",
    "performance.streams": None,
    "performance.forms": None,
    "performance.portable": True,
    "performance.cores_per_instance": None,
    "performance.num_of_instance": None,
    "workspace.path": None,
    "workspace.resume": False,
    "engine.name": "local",
    "engine.address": "auto",
    "engine.cpus": None,
    "engine.workers": None,
    "engine.timing": "driver",
}


def build(path: str, value: Any) -> Config:
    nested: Any = value
    for key in reversed(path.split(".")):
        nested = {key: nested}
    return Config.build(**nested)


@pytest.mark.parametrize(("path", "value"), DEFAULTS.items())
def test_default(path: str, value: object) -> None:
    assert attrgetter(path)(Config()) == value


def test_defaults_name_every_key() -> None:
    sections = {
        name: list(type(section).model_fields) if hasattr(section, "model_dump") else None
        for name in Config.model_fields
        for section in [getattr(Config(), name)]
    }
    keys = {f"{name}.{key}" for name, below in sections.items() if below for key in below} | {
        name for name, below in sections.items() if not below
    }
    assert keys == set(DEFAULTS)


@pytest.mark.parametrize(
    ("path", "written", "read"),
    [
        ("model.framework", "torch", "pytorch"),
        ("model.framework", "PyTorch", "pytorch"),
        ("model.framework", "tf", "tensorflow"),
        ("model.framework", "onnxruntime", "onnx"),
        ("model.framework", "onnxrt_qlinearops", "onnx"),
        ("model.inputs", "ids, mask", ("ids", "mask")),
        ("model.inputs", "ids,mask,", ("ids", "mask")),
        ("model.outputs", ["a, b", 12], ("a, b", "12")),
        ("calibration.samples", 64, (64,)),
        ("calibration.samples", "10, 50", (10, 50)),
        ("calibration.batches", [1, "2", 3.0], (1, 2, 3)),
        ("calibration.data.arrays", "x.npz", Path("x.npz")),
        ("evaluation.metric", "package.module:function", "package.module:function"),
        ("evaluation.outputs", "logits, boxes", ("logits", "boxes")),
        ("evaluation.postprocess", {"LabelShift": 1}, {"LabelShift": 1}),
        ("quantization.approach", "post_training_static_quant", "static"),
        ("quantization.approach", "post_training_dynamic_quant", "dynamic"),
        ("quantization.weight.dtype", "int8", ("int8",)),
        ("quantization.weight.dtype", ["int8", "FP32", "int8"], ("int8", "fp32")),
        ("quantization.activation.algorithm", "minmax, kl", ("minmax", "kl")),
        ("quantization.activation.scheme", ["asym"], ("asym",)),
        ("quantization.weight.granularity", None, None),
        ("criterion.relative", "1%", 0.01),
        ("criterion.relative", " 0.5 % ", 0.005),
        ("criterion.relative", -0.02, -0.02),
        ("criterion.relative", "-2%", -0.02),
        ("criterion.relative", 0, 0.0),
        ("criterion.absolute", 3, 3.0),
        ("criterion.confidence", "95%", 0.95),
        ("criterion.certify", "holdout", "holdout"),
        ("tuning.strategy", "Bayesian", "bayesian"),
        ("tuning.timeout", "1e3", 1000.0),
        ("tuning.max_trials", 5.0, 5),
        ("workspace.resume", "yes", True),
        ("engine.name", "Ray", "ray"),
        ("workspace.path", Path("runs/1"), Path("runs/1")),
    ],
)
def test_ways_to_write(path: str, written: object, read: object) -> None:
    assert attrgetter(path)(build(path, written)) == read


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("device", "gpu", "device must be 'cpu', the only device that is tuned for. Got 'gpu'."),
        (
            "model.framework",
            "pytorch_ipex",
            "model.framework must be 'pytorch', 'tensorflow' or 'onnx'. Got 'pytorch_ipex'",
        ),
        ("model.framework", "onnxrt_cuda_ep", "Got 'onnxrt_cuda_ep'"),
        ("model.framework", "mxnet", "Got 'mxnet'."),
        ("model.inputs", [1.5], "put a name that looks like a number in quotes. Got [1.5]."),
        ("model.path", "", "model.path must be text. Got ''."),
        (
            "calibration.samples",
            0,
            "calibration.samples must be a whole number >= 1, or a list of them. Got 0.",
        ),
        ("calibration.samples", [], "Got []."),
        ("calibration.samples", None, "Got nothing."),
        ("calibration.batch_size", 2.5, "calibration.batch_size must be a whole number >= 1. Got 2.5."),
        ("calibration.batch_size", True, "Got True."),
        ("evaluation.metric_options", {"x": object}, "plain data"),
        ("evaluation.metric_options", {"x": float("nan")}, "plain data"),
        ("quantization.approach", "quant_aware_training", "must be 'auto', 'static' or 'dynamic'"),
        ("quantization.weight.dtype", "int4", "Got 'int4'. Did you mean 'int8'?"),
        ("quantization.weight.dtype", [], "or a list of these. Got []."),
        ("quantization.ops", {"a(": {}}, "quantization.ops['a('] is not a valid regular expression"),
        ("criterion.relative", 1, "Got 1. Did you mean 1%?"),
        ("criterion.relative", 5, "Did you mean 5%?"),
        ("criterion.relative", "150%", "below 1"),
        ("criterion.relative", "much", "must be a number or a percentage such as 0.01 or '1%'. Got 'much'."),
        ("criterion.relative", None, "criterion needs a number for 'relative' or for 'absolute'."),
        ("criterion.confidence", 95, "Did you mean 95%?"),
        ("criterion.certify", "half", "criterion.certify must be 'holdout'"),
        ("criterion.confidence", 0, "from 0.5 to below 1"),
        ("tuning.strategy", "basik", "Did you mean 'basic'?"),
        ("tuning.timeout", "soon", "Config: tuning.timeout must be a number >= 0. Got 'soon'."),
        ("tuning.timeout", -1, "Got -1."),
        ("tuning.timeout", float("inf"), "Got inf."),
        ("tuning.timeout", None, "Got nothing."),
        ("tuning.max_trials", 0, "tuning.max_trials must be a whole number >= 1. Got 0."),
        ("tuning.random_seed", 2**32, "from 0 to 4294967295"),
        ("workspace.resume", 3, "workspace.resume must be true or false. Got 3."),
        ("workspace.path", 3, "workspace.path must be a path. Got 3."),
    ],
)
def test_refused(path: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(path, value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("data/train.npz", {"arrays": Path("data/train.npz")}),
        (Path("train.npz"), {"arrays": Path("train.npz")}),
        ("package.module:factory", {"factory": "package.module:factory"}),
        ({"task": "sst2", "folder": "glue"}, {"task": "sst2", "folder": Path("glue")}),
        (
            {"task": "squad", "folder": "s", "split": "dev", "max_length": 384},
            {"task": "squad", "folder": Path("s"), "split": "dev", "max_length": 384},
        ),
    ],
)
def test_data_source(written: object, read: dict[str, object]) -> None:
    source = Config.build(calibration={"data": written}).calibration.data
    assert source is not None
    assert source.model_dump(exclude_none=True) == read


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "train.csv",
            "calibration.data must be a path that ends in .npz, 'package.module:factory', or a mapping",
        ),
        ("not a reference: really", "'package.module:function'"),
        (3, "must be a path that ends in .npz"),
        ({}, "calibration.data says nothing; give exactly one of"),
        ({"task": "sst2"}, "has a 'task' but no 'folder'"),
        ({"folder": "glue"}, "has a 'folder' but no 'task'"),
        ({"task": "sst2", "folder": "glue", "factory": "a:b"}, "has 'task' and 'factory'; give exactly one"),
        ({"arrays": "a.npz", "max_length": 3}, "has 'max_length', which only a 'task' can use"),
        ({"arrays": "a.npz", "taks": "x"}, "calibration.data.taks is not a known key. Did you mean 'task'?"),
    ],
)
def test_data_source_refused(written: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build(calibration={"data": written})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("metric", "name", "options"),
    [
        ("accuracy", "accuracy", {}),
        ({"topk": 5}, "topk", {"k": 5}),
        ({"topk": {"k": 5}}, "topk", {"k": 5}),
        ({"GLUE": {"task": "mrpc"}}, "GLUE", {"task": "mrpc"}),
        ({"f1": None}, "f1", {}),
    ],
)
def test_metric_with_its_options(metric: object, name: str, options: dict[str, object]) -> None:
    evaluation = Config.build(evaluation={"metric": metric}).evaluation
    assert (evaluation.metric, evaluation.metric_options) == (name, options)


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"metric": {"topk": 1, "f1": {}}}, "evaluation.metric must be one metric"),
        ({"metric": {"f1": 3}}, "evaluation.metric must be a mapping of options"),
        ({"metric": {"topk": 1}, "metric_options": {"k": 2}}, "evaluation has options of the metric in both"),
    ],
)
def test_metric_refused(evaluation: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build(evaluation=evaluation)
    assert said in str(caught.value)


def test_absolute_replaces_the_default_relative() -> None:
    criterion = Config.build(criterion={"absolute": 0.5}).criterion
    assert (criterion.relative, criterion.absolute) == (None, 0.5)


def test_relative_and_absolute_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="criterion has both 'relative' and 'absolute'"):
        Config.build(criterion={"relative": 0.1, "absolute": 0.5})


def test_sections_in_python() -> None:
    config = Config(
        criterion={"relative": "1%"},
        tuning={"timeout": 60},
        calibration={"data": DataSource(factory="a.b:c")},
    )
    assert config.criterion.relative == 0.01
    assert config.tuning.timeout == 60
    assert config.calibration.data == DataSource(factory="a.b:c")


def test_a_mistake_in_python_is_pydantics_own_error_and_readable() -> None:
    with pytest.raises(ValidationError, match="must be a number >= 0"):
        Config(tuning={"timeout": "soon"})


def test_build_tells_all_mistakes() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build(tuning={"timeout": "soon"}, critrion={})
    assert "Config has 2 problems:" in str(caught.value)
    assert "critrion is not a known key. Did you mean 'criterion'?" in str(caught.value)


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().tuning.timeout = 3  # type: ignore[misc]


def test_an_empty_section_is_the_default() -> None:
    assert parse_config("tuning:\ncriterion:\nmodel:\nquantization:\n  weight:\n") == Config()


def test_ops() -> None:
    config = Config.build(
        quantization={"ops": {"MatMul": {"weight": {"dtype": "fp32"}}, "0": {"activation": None}}}
    )
    assert config.quantization.ops == {
        "MatMul": OpOptions(weight=TensorOptions(dtype=("fp32",))),
        "0": OpOptions(),
    }


def _properties(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    found = [*schema["properties"].items()]
    for definition in schema["$defs"].values():
        found += definition["properties"].items()
    return found


def test_json_schema_describes_every_key() -> None:
    written = Config.schema_json()
    assert written.startswith("{\n  ")
    schema = json.loads(written)
    properties = _properties(schema)
    assert len(properties) >= len(DEFAULTS)
    # Where a section's key would only repeat what the section says of itself, pydantic leaves the text there.
    described = [
        (name, {**schema["$defs"].get(key.get("$ref", "").rpartition("/")[2], {}), **key})
        for name, key in properties
    ]
    assert [name for name, key in described if not key.get("description")] == []


def test_json_schema_refuses_unknown_keys() -> None:
    schema = json.loads(Config.schema_json())
    assert all(part["additionalProperties"] is False for part in [schema, *schema["$defs"].values()])
