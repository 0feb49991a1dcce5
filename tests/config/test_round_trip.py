"""Whatever a configuration says survives being written and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octune.config import Config, detect_dialect, parse_config
from octune.config.yaml_lines import dump, read
from octune.errors import ConfigError

TEXT = st.text(min_size=1).filter(str.strip)
# Text that YAML reads as something else if it is not quoted.
TRICKY = st.sampled_from(
    [
        "1e-3",
        "010",
        "yes",
        "null",
        "~",
        "1:30",
        "2021-01-01",
        "=",
        "<<",
        "0x1F",
        ".5",
        "1_000",
        "- a",
        "#",
        "a: b",
        "'",
        '"',
    ]
)
NAMES = st.one_of(TEXT, TRICKY)
PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1).filter(
    str.strip
)
COUNTS = st.lists(st.integers(1, 10**9), min_size=1, max_size=3)
FLOATS = st.floats(-1e9, 0.999)
SECONDS = st.floats(0, 1e9)
COUNT = st.integers(1, 10**9)
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), NAMES
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
OPTIONS = st.dictionaries(NAMES, PLAIN, max_size=3)


def said(content: str | dict[str, Any]) -> str:
    """What is wrong with a configuration, or where it came from if nothing is."""
    try:
        parse_config(content)
    except ConfigError as error:
        return str(error)
    return "<string>" if isinstance(content, str) else "<mapping>"


def section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


def some(*words: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), min_size=1, unique=True)


DATA = st.one_of(
    st.fixed_dictionaries({"task": NAMES, "folder": PATHS}, optional={"split": NAMES, "max_length": COUNT}),
    st.fixed_dictionaries({"factory": st.sampled_from(["a:b", "a.b:c.d", "_x.y1:z"])}),
    st.fixed_dictionaries({"arrays": PATHS}),
)
TENSOR = section(
    dtype=some("int8", "uint8", "bf16", "fp32"),
    granularity=some("per_channel", "per_tensor"),
    scheme=some("sym", "asym"),
    algorithm=some("minmax", "percentile", "mse", "kl"),
)
OPS = st.dictionaries(
    st.one_of(
        st.text("azAZ09_.-/", min_size=1, max_size=200), st.sampled_from(["conv.*", "a|b", "x[01]", "ä"])
    ),
    section(weight=TENSOR, activation=TENSOR),
    max_size=4,
)
CRITERION = st.one_of(
    section(relative=FLOATS, higher_is_better=st.booleans(), confidence=st.floats(0.5, 0.999)),
    st.fixed_dictionaries({"absolute": FLOATS}, optional={"higher_is_better": st.booleans()}),
)
CONFIGS = section(
    model=section(
        path=NAMES,
        name=NAMES,
        framework=st.sampled_from(["pytorch", "tf", "onnx"]),
        inputs=st.lists(NAMES, max_size=3),
        outputs=st.lists(NAMES),
    ),
    calibration=section(data=DATA, samples=COUNTS, batches=COUNTS, batch_size=COUNT),
    evaluation=section(
        data=DATA, metric=NAMES, metric_options=OPTIONS, batch_size=COUNT, samples=COUNT, postprocess=OPTIONS
    ),
    quantization=section(
        approach=st.sampled_from(["auto", "static", "dynamic"]), weight=TENSOR, activation=TENSOR, ops=OPS
    ),
    criterion=CRITERION,
    tuning=section(
        strategy=st.sampled_from(["auto", "basic", "mse", "bayesian", "tpe", "random", "exhaustive"]),
        timeout=SECONDS,
        max_trials=COUNT,
        trial_timeout=SECONDS,
        random_seed=st.integers(0, 2**32 - 1),
        objective=st.sampled_from(["performance", "footprint", "modelsize"]),
        performance_only=st.booleans(),
        tensorboard=st.booleans(),
        mlflow=st.booleans() | NAMES,
    ),
    performance=section(
        warmup=st.integers(0, 99),
        iterations=COUNT,
        threads=COUNT,
        batch_size=COUNT,
        compile=st.sampled_from(["auto", "never"]),
        cores_per_instance=COUNT,
        num_of_instance=COUNT,
    ),
    workspace=section(path=PATHS, resume=st.booleans()),
).map(lambda keys: Config.build(**keys))


# building the first example fills Hypothesis' tables
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS)
def test_yaml(config: Config) -> None:
    written = config.to_yaml()
    assert parse_config(written) == config
    assert detect_dialect(yaml.safe_load(written)) == "native"


# building the first example fills Hypothesis' tables
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS)
def test_json(config: Config) -> None:
    assert Config.from_json(json.loads(json.dumps(config.to_json(), allow_nan=False))) == config


@given(OPTIONS)
def test_plain_data(data: dict[str, Any]) -> None:
    document = read(dump(data))
    assert document.data == data
    assert document.problems == ()


@given(st.text())
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    assert said(text).startswith("<string>")


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "framework",
                "model",
                "tuning",
                "quantization",
                "evaluation",
                "calibration",
                "snapshot",
                "device",
            ]
        ),
        PLAIN,
    )
)
def test_any_mapping_is_a_configuration_or_a_config_error(mapping: dict[str, Any]) -> None:
    assert said(mapping).startswith("<mapping>")


def test_written_for_people() -> None:
    config = Config(criterion={"absolute": 0.5}, quantization={"ops": {"a/b": {"weight": {"dtype": "fp32"}}}})
    written = config.to_yaml()
    assert "criterion:\n  relative: null\n  absolute: 0.5\n" in written
    assert "  ops:\n    a/b:\n      weight:\n        dtype: [fp32]\n" in written


@pytest.mark.parametrize("number", ["1e-3", "1.0e-3", "0.001", "1E-03", ".001"])
def test_numbers_as_people_write_them(number: str) -> None:
    assert read(f"x: {number}").data == {"x": 0.001}


@pytest.mark.parametrize("text", ["1:30", "2021-01-01", "010", "0x10", "=", "1.2.3"])
def test_text_that_is_no_number(text: str) -> None:
    assert read(f"x: {text}").data == {"x": text}
