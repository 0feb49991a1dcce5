"""Names and patterns of ops."""

from __future__ import annotations

import pytest

from octune.config import OpOptions, TensorOptions, match_ops
from octune.errors import ConfigError

NAMES = ["bert/layer_0/MatMul", "bert/layer_1/MatMul", "loss/MatMul", "MatMul", "encoder.0.query"]
FP32 = OpOptions(weight=TensorOptions(dtype=("fp32",)), activation=TensorOptions(dtype=("fp32",)))
SYM = OpOptions(weight=TensorOptions(scheme=("sym",)))
ASYM = OpOptions(weight=TensorOptions(scheme=("asym",), dtype=("int8",)))


def test_a_name_means_one_op() -> None:
    assert match_ops({"MatMul": FP32}, NAMES) == {"MatMul": FP32}


def test_a_dot_is_part_of_a_name() -> None:
    with pytest.raises(ConfigError):
        match_ops({"encoder.0.q.ery": FP32}, NAMES)


def test_a_special_character_makes_an_expression() -> None:
    assert match_ops({r"bert/layer_\d/MatMul": FP32}, NAMES) == {
        "bert/layer_0/MatMul": FP32,
        "bert/layer_1/MatMul": FP32,
    }


def test_an_expression_matches_whole_names() -> None:
    with pytest.raises(ConfigError, match="as a regular expression it matches no whole op name"):
        match_ops({"layer_[01]": FP32}, NAMES)


def test_a_name_that_looks_like_an_expression_still_means_its_op() -> None:
    assert match_ops({"a+b": FP32}, ["a+b", "aab"]) == {"a+b": FP32}


def test_later_expressions_refine_and_the_name_has_the_last_word() -> None:
    found = match_ops({"MatMul": SYM, ".*MatMul": FP32, "loss.*": ASYM}, NAMES)
    assert found["MatMul"].weight == TensorOptions(dtype=("fp32",), scheme=("sym",))
    assert found["loss/MatMul"].weight == TensorOptions(dtype=("int8",), scheme=("asym",))
    assert found["loss/MatMul"].activation == TensorOptions(dtype=("fp32",))
    assert found["bert/layer_0/MatMul"] == FP32
    assert "encoder.0.query" not in found


def test_nothing_asked() -> None:
    assert match_ops({}, NAMES) == {}


def test_a_key_that_means_nothing_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        match_ops({"encoder.0.qury": FP32, "Conv2D": FP32, "MatMul": FP32}, NAMES)
    first, second = str(caught.value).split("\n")
    assert first == "quantization.ops: 'encoder.0.qury': no op has this name. Nearest names: encoder.0.query."
    assert second.startswith("quantization.ops: 'Conv2D': no op has this name. Nearest names: ")


def test_the_last_part_of_a_name_is_near() -> None:
    with pytest.raises(ConfigError, match=r"Nearest names: encoder\.0\.query"):
        match_ops({"query": FP32}, NAMES)


def test_a_model_without_ops() -> None:
    with pytest.raises(ConfigError, match="The model has no ops that can be quantized"):
        match_ops({"x": FP32}, [])
