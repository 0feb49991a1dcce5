"""iLiT and LPOT: every key of the contract in every form, their defaults, both founding documents, and what
cannot be honoured.
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from octune.config import Config, DataSource, OpOptions, TensorOptions, detect_dialect, parse_config
from octune.config.dialects import ILIT, LPOT
from octune.errors import ConfigError
from tests.compat.documents import ILIT as ILIT_DOCUMENT
from tests.compat.documents import LPOT as LPOT_DOCUMENT
from tests.compat.documents import block

ILIT_FILE = """\
# signs on the road
tuning:
  random_seed: 42
  timeout: 900
  accuracy_criterion:
    - relative: 3%
device: cpu
framework:
- name: pytorch
"""

LPOT_FILE = """\
# a detector whose heads stay as they are
tuning:
  random_seed: 31
  exit_policy: {max_trials: 25, timeout: 1800}
  accuracy_criterion: {relative: 0.005}
quantization:
  op_wise: {
    "heads/.*": {"weight": {"dtype": [fp32]}, "activation": {"dtype": [fp32]}},
  }
  model_wise: {weight: {granularity: per_tensor}}
  calibration:
    sampling_size: 64
model:
  framework: tensorflow
  name: detector
  inputs: image, threshold
  outputs: boxes:0, scores:0, classes:1
"""

FP32 = OpOptions(
    weight=TensorOptions(dtype=("fp32",)),
    activation=TensorOptions(dtype=("fp32", "uint8"), algorithm=("kl",)),
)
OP = {"weight": {"dtype": ["fp32"]}, "activation": {"dtype": ["fp32", "uint8"], "algorithm": "kl"}}
GLUE = {"GLUE": {"data_dir": "glue/MRPC", "task": "mrpc"}}

# old key, what is written, new key, what is read
Case = tuple[str, Any, str, Any]


def _tensor_cases(old: str, keys: str, new: str) -> list[Case]:
    values = {
        "granularity": "per_channel",
        "scheme": ["sym", "asym"],
        "dtype": "int8, fp32",
        "algorithm": "minmax",
    }
    read = {
        "granularity": ("per_channel",),
        "scheme": ("sym", "asym"),
        "dtype": ("int8", "fp32"),
        "algorithm": ("minmax",),
    }
    return [
        (old.format(tensor, key), values[key], new.format(tensor, key), read[key])
        for tensor in ("weight", "activation")
        for key in keys.split()
    ]


ILIT_CASES: list[Case] = [
    ("framework", "tensorflow", "model.framework", "tensorflow"),
    ("framework.name", "pytorch", "model.framework", "pytorch"),
    ("framework.inputs", "input", "model.inputs", ("input",)),
    ("framework.outputs", ["a", "b"], "model.outputs", ("a", "b")),
    ("device", "cpu", "device", "cpu"),
    ("calibration.iterations", "10, 50", "calibration.batches", (10, 50)),
    ("calibration.iterations", 5, "calibration.batches", (5,)),
    ("calibration.algorithm.weight", "minmax", "quantization.weight.algorithm", ("minmax",)),
    (
        "calibration.algorithm.activation",
        ["minmax", "kl"],
        "quantization.activation.algorithm",
        ("minmax", "kl"),
    ),
    ("quantization.approach", "post_training_dynamic_quant", "quantization.approach", "dynamic"),
    *_tensor_cases("quantization.{}.{}", "granularity scheme dtype", "quantization.{}.{}"),
    ("tuning.ops", {"conv1": OP}, "quantization.ops", {"conv1": FP32}),
    ("tuning.strategy", "mse", "tuning.strategy", "mse"),
    ("tuning.strategy.name", "tpe", "tuning.strategy", "tpe"),
    ("tuning.metric", "f1", "evaluation.metric", "f1"),
    ("tuning.metric", {"topk": 5}, "evaluation.metric_options", {"k": 5}),
    ("tuning.accuracy_criterion.relative", "2%", "criterion.relative", 0.02),
    ("tuning.accuracy_criterion.absolute", 0.3, "criterion.absolute", 0.3),
    ("tuning.accuracy_criterion.higher_is_better", False, "criterion.higher_is_better", False),
    ("tuning.objective", "footprint", "tuning.objective", "footprint"),
    ("tuning.timeout", 36000, "tuning.timeout", 36000),
    ("tuning.random_seed", 13, "tuning.random_seed", 13),
    ("snapshot.path", "runs/a", "workspace.path", Path("runs/a")),
]

LPOT_CASES: list[Case] = [
    ("version", 1.0, "device", "cpu"),
    ("model.name", "bert", "model.name", "bert"),
    ("model.framework", "onnxrt_integerops", "model.framework", "onnx"),
    ("model.inputs", "a, b", "model.inputs", ("a", "b")),
    ("model.outputs", ["c"], "model.outputs", ("c",)),
    ("device", "cpu", "device", "cpu"),
    ("quantization.calibration.sampling_size", [100, 200], "calibration.samples", (100, 200)),
    ("quantization.calibration.sampling_size", "100, 200", "calibration.samples", (100, 200)),
    ("quantization.calibration.dataloader.batch_size", 4, "calibration.batch_size", 4),
    (
        "quantization.calibration.dataloader.dataset",
        GLUE,
        "calibration.data",
        DataSource(task="mrpc", folder=Path("glue/MRPC")),
    ),
    ("quantization.calibration.dataloader.last_batch", "rollover", "calibration.batch_size", 1),
    ("quantization.calibration.dataloader.shuffle", False, "calibration.batch_size", 1),
    ("quantization.calibration.dataloader.transform", None, "calibration.batch_size", 1),
    ("quantization.calibration.dataloader.filter", None, "calibration.batch_size", 1),
    ("quantization.approach", "post_training_dynamic_quant", "quantization.approach", "dynamic"),
    *_tensor_cases(
        "quantization.model_wise.{}.{}", "granularity scheme dtype algorithm", "quantization.{}.{}"
    ),
    ("quantization.op_wise", {"conv.*": OP}, "quantization.ops", {"conv.*": FP32}),
    ("evaluation.accuracy.metric", {"topk": 1}, "evaluation.metric_options", {"k": 1}),
    ("evaluation.accuracy.metric", {"GLUE": {"task": "mrpc"}}, "evaluation.metric_options", {"task": "mrpc"}),
    ("evaluation.accuracy.metric", "SquadF1", "evaluation.metric", "SquadF1"),
    ("evaluation.accuracy.dataloader.batch_size", 16, "evaluation.batch_size", 16),
    (
        "evaluation.accuracy.dataloader.dataset",
        "my.data:dev",
        "evaluation.data",
        DataSource(factory="my.data:dev"),
    ),
    ("evaluation.accuracy.dataloader.last_batch", "rollover", "evaluation.batch_size", 1),
    ("evaluation.accuracy.dataloader.shuffle", False, "evaluation.batch_size", 1),
    ("evaluation.accuracy.dataloader.transform", {}, "evaluation.batch_size", 1),
    ("evaluation.accuracy.dataloader.filter", {}, "evaluation.batch_size", 1),
    (
        "evaluation.accuracy.postprocess",
        {"transform": {"LabelShift": 1}},
        "evaluation.postprocess",
        {"LabelShift": 1},
    ),
    ("evaluation.accuracy.iteration", -1, "evaluation.samples", None),
    ("evaluation.performance.warmup", 10, "performance.warmup", 10),
    ("evaluation.performance.iteration", 100, "performance.iterations", 100),
    ("evaluation.performance.iteration", -1, "performance.iterations", None),
    ("evaluation.performance.configs.cores_per_instance", 4, "performance.cores_per_instance", 4),
    ("evaluation.performance.configs.num_of_instance", 7, "performance.num_of_instance", 7),
    ("evaluation.performance.configs.intra_num_of_threads", 4, "performance.threads", 4),
    ("evaluation.performance.configs.inter_num_of_threads", 1, "performance.threads", None),
    ("evaluation.performance.configs.kmp_blocktime", None, "performance.threads", None),
    ("evaluation.performance.configs.kmp_affinity", None, "performance.threads", None),
    ("evaluation.performance.dataloader.batch_size", 2, "performance.batch_size", 2),
    ("evaluation.performance.dataloader.dataset", None, "performance.batch_size", 1),
    ("evaluation.performance.dataloader.last_batch", "rollover", "performance.batch_size", 1),
    ("evaluation.performance.dataloader.shuffle", False, "performance.batch_size", 1),
    ("evaluation.performance.dataloader.transform", None, "performance.batch_size", 1),
    ("evaluation.performance.dataloader.filter", None, "performance.batch_size", 1),
    ("evaluation.performance.postprocess", None, "performance.warmup", 5),
    ("tuning.strategy", "random", "tuning.strategy", "random"),
    ("tuning.strategy.name", "bayesian", "tuning.strategy", "bayesian"),
    ("tuning.accuracy_criterion.relative", "1%", "criterion.relative", 0.01),
    ("tuning.accuracy_criterion.absolute", -0.1, "criterion.absolute", -0.1),
    ("tuning.accuracy_criterion.higher_is_better", False, "criterion.higher_is_better", False),
    ("tuning.objective", "modelsize", "tuning.objective", "modelsize"),
    ("tuning.exit_policy.timeout", 60, "tuning.timeout", 60),
    ("tuning.exit_policy.max_trials", 7, "tuning.max_trials", 7),
    ("tuning.exit_policy.performance_only", True, "tuning.performance_only", True),
    ("tuning.random_seed", 13, "tuning.random_seed", 13),
    ("tuning.tensorboard", True, "tuning.tensorboard", True),
    ("tuning.workspace.path", "runs", "workspace.path", Path("runs")),
    ("tuning.workspace.resume", True, "workspace.resume", True),
    ("tuning.workspace.resume", "runs/7", "workspace.path", Path("runs/7")),
]


def nested(old: str, value: Any, base: dict[str, Any]) -> dict[str, Any]:
    """``base`` with one more key, given as a dotted path."""
    document = {key: dict(item) if isinstance(item, dict) else item for key, item in base.items()}
    here = document
    *sections, last = old.split(".")
    for section in sections:
        here[section] = dict(here[section]) if isinstance(here.get(section), dict) else {}
        here = here[section]
    here[last] = value
    return document


def as_lists(value: Any) -> Any:
    """The same document with every mapping below the top written as a list of mappings with one key."""
    return [{key: as_lists(item)} for key, item in value.items()] if isinstance(value, dict) else value


# Enough of a file to tell the dialect, without any key under test.
ILIT_BASE = {"framework": {"name": "pytorch"}}
LPOT_BASE = {
    "model": {"name": "m", "framework": "tensorflow"},
    "tuning": {"exit_policy": {"performance_only": False}},
    "evaluation": {"accuracy": {}},
}


@pytest.mark.parametrize(("old", "value", "new", "read"), ILIT_CASES)
def test_every_key_of_ilit(old: str, value: Any, new: str, read: Any) -> None:
    document = nested(old, value, ILIT_BASE)
    assert detect_dialect(document) == "ilit"
    assert attrgetter(new)(parse_config(document)) == read


@pytest.mark.parametrize(("old", "value", "new", "read"), ILIT_CASES)
def test_every_key_of_ilit_in_list_form(old: str, value: Any, new: str, read: Any) -> None:
    document = {key: as_lists(item) for key, item in nested(old, value, ILIT_BASE).items()}
    assert attrgetter(new)(parse_config(document)) == read


@pytest.mark.parametrize(("old", "value", "new", "read"), LPOT_CASES)
def test_every_key_of_lpot(old: str, value: Any, new: str, read: Any) -> None:
    document = nested(old, value, LPOT_BASE)
    assert detect_dialect(document) == "lpot"
    assert attrgetter(new)(parse_config(document)) == read


@pytest.mark.parametrize(("dialect", "cases"), [(ILIT, ILIT_CASES), (LPOT, LPOT_CASES)], ids=["ilit", "lpot"])
def test_the_cases_above_leave_no_row_of_the_tables_out(dialect: Any, cases: list[Case]) -> None:
    assert {row.old for row in dialect.rows} == {old for old, *_ in cases}


def test_a_whole_file_of_ilit() -> None:
    assert parse_config(ILIT_FILE) == Config.build(
        model={"framework": "pytorch"},
        calibration={"batches": 1},
        quantization={"approach": "static"},
        criterion={"relative": 0.03},
        tuning={"strategy": "basic", "timeout": 900, "random_seed": 42},
    )


def test_a_whole_file_of_lpot() -> None:
    assert parse_config(LPOT_FILE) == Config.build(
        model={
            "name": "detector",
            "framework": "tensorflow",
            "inputs": ["image", "threshold"],
            "outputs": ["boxes:0", "scores:0", "classes:1"],
        },
        calibration={"samples": 64},
        quantization={
            "approach": "static",
            "weight": {"granularity": "per_tensor"},
            "ops": {"heads/.*": {"activation": {"dtype": "fp32"}, "weight": {"dtype": "fp32"}}},
        },
        criterion={"relative": 0.005},
        tuning={"strategy": "basic", "timeout": 1800, "max_trials": 25, "random_seed": 31},
    )


@pytest.mark.shared
def test_the_file_in_the_document_of_ilit(shared: Path) -> None:
    text = block(shared / "seeds" / ILIT_DOCUMENT, "accuracy_criterion")
    written = yaml.safe_load(text)
    [framework], [criterion] = written["framework"], written["tuning"]["accuracy_criterion"]
    assert parse_config(text) == Config.build(
        model={"framework": framework["name"]},
        calibration={"batches": 1},
        quantization={"approach": "static"},
        criterion=criterion,
        tuning={"strategy": "basic", **{key: written["tuning"][key] for key in ("timeout", "random_seed")}},
    )


@pytest.mark.shared
def test_the_file_in_the_document_of_lpot(shared: Path) -> None:
    text = block(shared / "seeds" / LPOT_DOCUMENT, "accuracy_criterion")
    written = yaml.safe_load(text)
    model, quantization, tuning = written["model"], written["quantization"], written["tuning"]
    assert parse_config(text) == Config.build(
        model={**model, **{key: model[key].split(", ") for key in ("inputs", "outputs")}},
        calibration={"samples": quantization["calibration"]["sampling_size"]},
        quantization={"approach": "static", **quantization["model_wise"], "ops": quantization["op_wise"]},
        criterion=tuning["accuracy_criterion"],
        tuning={"strategy": "basic", **tuning["exit_policy"], "random_seed": tuning["random_seed"]},
    )


def test_ilit_defaults() -> None:
    config = parse_config("framework: pytorch\n")
    assert config.tuning.strategy == "basic"
    assert config.calibration.batches == (1,)
    assert config.quantization.approach == "static"


def test_lpot_defaults() -> None:
    config = parse_config("model: {name: m, framework: pytorch}\ntuning: {exit_policy: {timeout: 0}}\n")
    assert config.tuning.strategy == "basic"
    assert config.calibration.samples == (100,)
    assert config.calibration.batches is None
    assert config.quantization.approach == "static"


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("framework: pytorch", "ilit"),
        ("framework: [{name: pytorch}]", "ilit"),
        ("tuning: {accuracy_criterion: [{relative: 0.01}]}", "ilit"),
        ("calibration: {iterations: 10}", "ilit"),
        ("calibration: [{iterations: 10}]", "ilit"),
        ("snapshot: {path: x}", "ilit"),
        ("tuning: {ops: {}}", "ilit"),
        ("tuning: {accuracy_criterion: {relative: 0.01}}", "lpot"),
        ("model: {name: a, framework: tensorflow}", "lpot"),
        ("quantization: {model_wise: {}}", "lpot"),
        ("quantization: {calibration: {sampling_size: 3}}", "lpot"),
        ("evaluation: {accuracy: {metric: f1}}", "lpot"),
        ("tuning: {strategy: {name: basic}, workspace: {path: x}}", "lpot"),
        ("model: {path: a, framework: tensorflow}", "native"),
        ("model: {framework: tensorflow}\ncriterion: {relative: 1%}", "native"),
        ("tuning: {timeout: 3}", "native"),
        ("calibration: {samples: 3}", "native"),
        ("evaluation: {metric: {topk: 1}}", "native"),
        ("device: cpu", "native"),
        ("{}", "native"),
    ],
)
def test_detection(text: str, dialect: str) -> None:
    assert detect_dialect(yaml.safe_load(text)) == dialect


def test_names_of_ilit_are_never_expressions() -> None:
    config = parse_config(
        {"framework": "pytorch", "tuning": {"ops": {"conv+1": {"weight": {"dtype": "fp32"}}}}}
    )
    assert list(config.quantization.ops) == [r"conv\+1"]


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        (GLUE, DataSource(task="mrpc", folder=Path("glue/MRPC"))),
        (
            {"GLUE": {"data_dir": "d", "evaluate": True, "max_seq_length": 64}},
            DataSource(task="mrpc", folder=Path("d"), split="dev", max_length=64),
        ),
        (
            {"GLUE": {"data_dir": "d", "task": "sst-2", "evaluate": False}},
            DataSource(task="sst-2", folder=Path("d"), split="train"),
        ),
        (
            {"bert": {"root": "d", "label_file": "d/dev-v1.1.json", "dynamic_length": True}},
            DataSource(task="squad", folder=Path("d")),
        ),
        ([{"squad": [{"root": "d"}]}], DataSource(task="squad", folder=Path("d"))),
        ("a.npz", DataSource(arrays=Path("a.npz"))),
        ({"arrays": "a.npz"}, DataSource(arrays=Path("a.npz"))),
    ],
)
def test_datasets_of_lpot(dataset: Any, source: DataSource) -> None:
    document = nested("evaluation.accuracy.dataloader.dataset", dataset, LPOT_BASE)
    assert parse_config(document).evaluation.data == source


def test_iterations_of_the_evaluation_become_samples() -> None:
    accuracy = {"dataloader": {"batch_size": 4, "dataset": GLUE}, "iteration": 10}
    assert parse_config({**LPOT_BASE, "evaluation": {"accuracy": accuracy}}).evaluation.samples == 40


def test_timing_on_the_scored_data_is_fine() -> None:
    loader = {"batch_size": 4, "dataset": GLUE}
    config = parse_config(
        {
            **LPOT_BASE,
            "evaluation": {"accuracy": {"dataloader": loader}, "performance": {"dataloader": loader}},
        }
    )
    assert config.performance.batch_size == 4


@pytest.mark.parametrize(
    ("old", "value", "said"),
    [
        ("version", 2.0, "version cannot be honoured: only version 1.0"),
        ("model.framework", "pytorch_ipex", "model.framework must be"),
        ("device", "gpu", "device must be 'cpu'"),
        ("quantization.approach", "quant_aware_training", "quantization.approach must be"),
        (
            "quantization.calibration.dataloader.transform",
            {"Resize": 256},
            "quantization.calibration.dataloader.transform cannot be honoured",
        ),
        (
            "evaluation.accuracy.dataloader.last_batch",
            "discard",
            "last_batch cannot be honoured: the last batch is always used. Got 'discard'.",
        ),
        ("evaluation.accuracy.dataloader.shuffle", True, "shuffle cannot be honoured"),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"ImageFolder": {"root": "x"}},
            "dataset.ImageFolder cannot be read from the file alone",
        ),
        ("evaluation.accuracy.dataloader.dataset", {"GLUE": {}, "bert": {}}, "must name one data set"),
        ("evaluation.accuracy.dataloader.dataset", None, "must name one data set"),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"GLUE": {"task": "mrpc"}},
            "dataset.GLUE has a 'task' but no 'folder'",
        ),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"GLUE": {"data_dir": "x", "model_type": "bert"}},
            "GLUE.model_type cannot be honoured: the tokenizer",
        ),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"GLUE": {"data_dir": "x", "dynamic_length": False}},
            "dynamic_length cannot be honoured",
        ),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"GLUE": {"data_dir": "x", "evaluate": 1}},
            "evaluate must be true or false",
        ),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"GLUE": {"data_dri": "x"}},
            "GLUE.data_dri is not a known key. Did you mean 'data_dir'?",
        ),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"bert": {"root": "eval.tf_record"}},
            "names a TFRecord file",
        ),
        (
            "evaluation.accuracy.dataloader.dataset",
            {"bert": {"root": "d", "label_file": "e/dev-v1.1.json"}},
            "label_file cannot be honoured",
        ),
        ("evaluation.accuracy.iteration", 5, "no batch size is known here"),
        (
            "evaluation.accuracy.metric",
            {"topk": 1, "f1": None},
            "evaluation.accuracy.metric must be one metric",
        ),
        ("evaluation.accuracy.metric", {"topk": 0}, "evaluation.accuracy.metric must be a whole number >= 1"),
        (
            "evaluation.accuracy.postprocess",
            {"LabelShift": 1},
            "postprocess.LabelShift is not a known key. Known keys here: transform.",
        ),
        ("evaluation.performance.configs.kmp_blocktime", 1, "set KMP_BLOCKTIME in the environment"),
        ("evaluation.performance.configs.inter_num_of_threads", 4, "set intra_num_of_threads"),
        (
            "evaluation.performance.dataloader.dataset",
            GLUE,
            "latency is measured on evaluation.accuracy.dataloader.dataset",
        ),
        (
            "evaluation.performance.iteration",
            0,
            "evaluation.performance.iteration must be a whole number >= 1. Got 0.",
        ),
        ("tuning.strategy", "sigopt", "tuning.strategy must be 'auto', 'basic'"),
        ("tuning.workspace.resume", "x/history.snapshot", "names a history file of LPOT"),
        ("tuning.workspace.resume", 3, "tuning.workspace.resume must be true or false. Got 3."),
        (
            "tuning.max_trials",
            3,
            "tuning.max_trials is not a known key. Did you mean 'tuning.exit_policy.max_trials'?",
        ),
        (
            "tuning.accuracy_criterion",
            0.01,
            "tuning.accuracy_criterion must be a mapping of keys to values. Got 0.01.",
        ),
        (
            "tuning.accuracy_criterion",
            {"relative": 0.1, "absolute": 1},
            "tuning.accuracy_criterion has both 'relative' and 'absolute'",
        ),
        (
            "tuning.accuracy_criterion",
            [{"relative": 0.1}, {"relative": 0.2}],
            "tuning.accuracy_criterion.relative is given twice",
        ),
        ("quantization.op_wise", {"a(": {}}, "quantization.op_wise['a('] is not a valid regular expression"),
        (
            "quantization.op_wise",
            {"a": {"weigth": {}}},
            "quantization.op_wise.a.weigth is not a known key. Did you mean 'weight'?",
        ),
        ("quantization.op_wise", {"a": 3}, "quantization.op_wise.a must be a mapping"),
    ],
)
def test_what_cannot_be_honoured_is_said(old: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(nested(old, value, LPOT_BASE))
    assert said in str(caught.value)


def test_resume_from_another_folder_than_the_workspace() -> None:
    document = nested("tuning.workspace", {"path": "a", "resume": "b"}, LPOT_BASE)
    with pytest.raises(ConfigError, match=r"names a different folder from tuning\.workspace\.path"):
        parse_config(document)


def test_a_key_of_another_dialect_is_told_apart_from_a_typo() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(LPOT_FILE + "criterion:\n  relative: 1%\n")
    assert (
        "criterion is not a known key. It is a key of Octune's own dialect, but 'quantization.calibration'"
        in str(caught.value)
    )


def test_a_key_of_ilit_in_a_native_file() -> None:
    with pytest.raises(
        ConfigError,
        match=r"snapshot is not a known key\. It is a key of the iLiT dialect, but 'calibration\.data'",
    ):
        parse_config(
            "calibration: {data: a.npz, samples: 3}\ncriterion: {relative: 1%}\nsnapshot: {path: x}\n"
        )
