"""What messages share: an error in one line, and the names that a wrong one may stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.errors import alike, nearest, short, summary

CORE = "Exception from src/inference/src/cpp/core.cpp:84:"
CHECK = (
    "Check 'shape.compatible(ov::PartialShape(tensor->get_shape()))' failed at "
    "src/plugins/intel_cpu/src/infer_request.cpp:385:"
)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("one line", "one line"),
        ("\n\n  the first that is not empty \nanother", "the first that is not empty"),
        ("it failed:\n  for this reason", "it failed:"),  # only where an error comes from is passed over
        ("node.cpp:12: it failed\nanother", "node.cpp:12: it failed"),
        (f"{CORE}\nUnable to read the model\n\n", "Unable to read the model"),
        (
            f"{CORE}\nException from src/inference/src/dev/plugin.cpp:54:\n{CHECK}\nThe shapes differ\n\n\n",
            "The shapes differ",
        ),
        (
            f"{CORE}\nCheck 'false' failed at src/report.cpp:151:\nFrontEnd API failed with "
            "OpConversionFailure:\n"
            "Model wasn't fully converted.\nSummary:\n-- No conversion rule found for operations: my.Foo\n\n",
            "Model wasn't fully converted. -- No conversion rule found for operations: my.Foo",
        ),
        (f"{CORE}\n", CORE),  # nothing explains it
        (f"{CORE}\n{CHECK}\n", CHECK),
        (
            "Graph execution error:\n\nDetected at node 'a' defined at (most recent call last):\n f.py\n"
            "Node: 'a'\nMatrix size-incompatible\n\t [[{{node a}}]]",
            "Matrix size-incompatible",
        ),
        ("it failed\nNode: 'a'", "it failed"),  # nothing after it
    ],
)
def test_the_line_that_says_something(message: str, said: str) -> None:
    assert summary(RuntimeError(message)) == said


def test_an_error_without_a_message_is_named() -> None:
    assert summary(ValueError()) == "ValueError()"
    assert summary(ValueError(" \n")) == r"ValueError(' \n')"


def test_a_long_line_keeps_its_beginning_and_its_end() -> None:
    said = summary(RuntimeError(f"Load model failed: {'ns::f(' * 100} Unsupported model IR version"))
    assert len(said) <= 300
    assert said.startswith("Load model failed: ns::f(")
    assert said.endswith("Unsupported model IR version")
    assert " ... " in said
    assert summary(RuntimeError("x" * 300)) == "x" * 300


@given(st.text())
def test_it_is_one_short_line_that_is_not_empty(message: str) -> None:
    said = summary(RuntimeError(message))
    assert len(said.splitlines()) == 1
    assert said.strip()
    assert len(said) <= 300


def test_what_openvino_really_says(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    for name, said in (
        ("broken.onnx", "Unable to read the model"),
        ("missing.onnx", "Could not open the file"),
    ):
        with pytest.raises(RuntimeError) as caught:
            openvino.Core().read_model(str(tmp_path / name))
        assert str(caught.value).startswith("Exception from src/")  # or else this tests nothing
        assert said in summary(caught.value)
        assert "Exception from" not in summary(caught.value)


# -- names ---------------------------------------------------------------------------------------------------


def test_names_that_contain_a_wrong_one_come_before_those_spelt_alike() -> None:
    names = ["encoder/layer_0/output/dense/MatMul", "encoder/layer_0/MatMul_1", "matmuk", "logits"]
    assert nearest("matmul", names) == [names[0], names[1], "matmuk"]
    assert nearest("other/MatMul", names, 1) == [names[0]]  # ends like it
    assert nearest("layer_7", names[3:]) == ["logits"]  # nothing is near: the first ones
    assert nearest("anything", []) == []


def test_a_misspelt_word_in_any_case() -> None:
    assert alike("ACURACY", ["accuracy", "F1"]) == ["accuracy"]
    assert alike("f1", ["accuracy", "F1"]) == ["F1"]
    assert alike("loss", ["accuracy", "F1"]) == []
    assert alike("mrp", ["mrpc", "mrp", "qqp"], 2) == ["mrp", "mrpc"]


def test_many_names_are_cut() -> None:
    assert short("abc") == "a, b, c"
    assert short("abcdefghij") == "a, b, c, d, e, f, g, h, ... (10 in all)"
