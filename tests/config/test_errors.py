"""Messages: file, line, the user's own key, what was expected, the nearest key; and files that are no
configuration at all.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from octune.config import Config, load_config, parse_config
from octune.errors import ConfigError

NATIVE = """\
# how to tune
model:
  path: models/bert
criterion:
  relative: 1%

tuning:
  strategy: auto
  timeout: soon
"""

ILIT = """\
framework:
  - name: pytorch

device: cpu

tuning:
    accuracy_criterion:
      - relative: lots
    timeout: 0
"""

LPOT = """\
model:
  name: bert
  framework: tensorflow

quantization:
  op_wise: {
             'MatMul': {
               'activation':  {'dtype': ['fp32']},
               'weight':  {'dtype': ['int3']},
             }
           }
tuning:
  acuracy_criterion:
    relative: 0.01
  exit_policy:
    timeout: -3
"""


def message(text: str, source: str = "conf.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source=source)
    return str(caught.value)


def test_a_wrong_value() -> None:
    assert message(NATIVE) == "conf.yaml, line 9: tuning.timeout must be a number >= 0. Got 'soon'."


def test_a_wrong_key() -> None:
    said = message(NATIVE.replace("timeout: soon", "time_out: 3"))
    assert said == (
        "conf.yaml, line 9: tuning.time_out is not a known key. Did you mean 'timeout'? Known keys here: "
        "strategy, timeout, "
        "max_trials, trial_timeout, random_seed, objective, performance_only, isolate, tensorboard, mlflow."
    )


def test_a_wrong_section() -> None:
    assert message("criterion: {}\ntunning:\n  timeout: 3\n").startswith(
        "conf.yaml, line 2: tunning is not a known key. Did you mean 'tuning'?"
    )


def test_a_known_key_at_the_wrong_place() -> None:
    assert "line 2: tuning.warmup is not a known key. Did you mean 'performance.warmup'?" in message(
        "tuning:\n  warmup: 3\n"
    )


def test_the_line_and_the_key_survive_translation_from_ilit() -> None:
    said = message(ILIT)
    assert said == (
        "conf.yaml, line 8: tuning.accuracy_criterion.relative must be a number or a percentage such as 0.01 "
        "or '1%'. Got 'lots'."
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    lines = message(LPOT).split("\n")
    assert lines[0] == "conf.yaml has 3 problems:"
    assert lines[1].startswith(
        "  conf.yaml, line 9: quantization.op_wise.MatMul.weight.dtype must be 'int8', 'uint8', 'bf16' or "
        "'fp32'"
    )
    assert lines[2].startswith(
        "  conf.yaml, line 13: tuning.acuracy_criterion is not a known key. Did you mean "
        "'accuracy_criterion'?"
    )
    assert lines[3] == "  conf.yaml, line 16: tuning.exit_policy.timeout must be a number >= 0. Got -3."
    assert len(lines) == 4


def test_known_keys_are_those_of_the_dialect() -> None:
    known = (
        "Known keys here: strategy, accuracy_criterion, exit_policy, objective, random_seed, "
        "tensorboard, workspace."
    )
    assert known in message(LPOT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tuning:\n  timeout: 1\n  timeout: 2\n",
            "line 3: tuning.timeout is given twice; the first is on line 2. Keep one.",
        ),
        ("tuning: {}\ndevice: cpu\ntuning: {}\n", "line 3: tuning is given twice; the first is on line 1."),
        ("criterion:\n  relative: 1%\n absolute: 2\n", "line 3: this is not valid YAML:"),
        (
            "tuning:\n\ttimeout: 1\n",
            "line 2: this is not valid YAML: found character '\\t' that cannot start any token. Indent with "
            "spaces",
        ),
        ("device: 'cpu\n", "this is not valid YAML"),
        ("device: \x07\n", "line 1: this is not valid YAML: the character '\\x07' is not allowed."),
        ("a: 1\n---\nb: 2\n", "line 2: this is not valid YAML"),
        ("device: *nowhere\n", "line 1: this is not valid YAML: found undefined alias"),
        ("tuning: &a\n  x: *a\n", "contains itself"),
        (
            "device: !!python/object/apply:os.getcwd []\n",
            "line 1: device has the tag !!python/object/apply:os.getcwd, which is not allowed",
        ),
        ("tuning: {timeout: !!int many}\n", "tuning.timeout has the tag !!int, which 'many' does not fit."),
        ("? [a, b]\n: 1\n", "has a key that is a list or a mapping"),
        ("tuning:\n  <<: 3\n", "tuning merges (<<) something that is not a mapping."),
        ("[" * 5000, "nested too deeply"),
        ("", "conf.yaml is empty."),
        ("# nothing yet\n", "conf.yaml is empty."),
        ("null\n", "conf.yaml is empty."),
        ("- a\n- b\n", "line 1: a configuration must be a mapping of sections"),
        (
            "just text\n",
            "a configuration must be a mapping of sections such as model, criterion and tuning. Got 'just "
            "text'.",
        ),
        ("tuning: fast\n", "line 1: tuning must be a mapping of keys to values. Got 'fast'."),
        (
            "criterion:\n- relative: 3\n",
            "line 1: criterion must be a mapping of keys to values. Got [{'relative': 3}].",
        ),
        (
            "calibration:\n  samples: 3\n  data:\n    task: x\n",
            "line 3: calibration.data has a 'task' but no 'folder'",
        ),
        (
            "quantization:\n  ops:\n    a: {}\n    'b[': {}\n",
            "line 4: quantization.ops['b['] is not a valid regular expression",
        ),
        (
            "evaluation:\n  batch_size: 3\n  metric: {a: 1, b: 2}\n",
            "line 3: evaluation.metric must be one metric",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    assert said in message(text)


def test_aliases_cannot_blow_up() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)
    ]
    assert "more than 100,000 values" in message("\n".join(levels))


def test_anchors_and_merges_work() -> None:
    text = "quantization:\n  weight: &w {dtype: int8, scheme: sym}\n  activation: {<<: *w, scheme: asym}\n"
    options = parse_config(text).quantization.activation
    assert (options.dtype, options.scheme) == (("int8",), ("asym",))


def test_long_values_are_cut() -> None:
    said = message(f"tuning:\n  timeout: {'x' * 500}\n")
    assert len(said) < 200
    assert said.endswith("....")


def test_a_mapping_has_no_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"tuning": {"timeout": "soon"}})
    assert str(caught.value) == "<mapping>: tuning.timeout must be a number >= 0. Got 'soon'."


def test_neither_text_nor_mapping() -> None:
    with pytest.raises(ConfigError, match=r"use load_config\(path\)"):
        parse_config(Path("conf.yaml"))  # type: ignore[arg-type]


def test_a_path_given_as_text() -> None:
    with pytest.raises(ConfigError, match=r"Got 'conf.yaml'. To read a file, use load_config\(path\)"):
        parse_config("conf.yaml")


def test_loading(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("\ufefftuning:\n  timeout: 60\n", encoding="utf-8")
    assert load_config(file) == load_config(str(file)) == Config(tuning={"timeout": 60})


def test_the_file_is_never_touched(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(
        LPOT.replace("acuracy", "accuracy").replace("int3", "fp32").replace("-3", "3"), encoding="utf-8"
    )
    file.chmod(stat.S_IRUSR)
    before = (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_mode)
    load_config(file)
    assert (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_mode) == before
    assert list(tmp_path.iterdir()) == [file]


def test_errors_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(NATIVE, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}, line 9: ")


def test_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "config.yaml")
    assert f"{tmp_path / 'config.yaml'} does not exist. Did you mean '{tmp_path / 'conf.yaml'}'?" in str(
        caught.value
    )


def test_a_file_in_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist\. Name an existing YAML file"):
        load_config(tmp_path / "nowhere" / "conf.yaml")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder\. Name a YAML file in it"):
        load_config(tmp_path)


def test_a_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x07\x12\x00\x00onnx")
    with pytest.raises(ConfigError, match="is a binary file, not YAML text"):
        load_config(file)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_bytes("device: cpu\n# größer\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="line 2: this is not UTF-8 text"):
        load_config(file)
