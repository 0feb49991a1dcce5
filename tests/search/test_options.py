"""Which schemes a run may use: what the ops can do, narrowed to what was asked for; what cannot be honoured
is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octune.calibration import Observer, Ranges, TensorStats
from octune.config.limits import Quantization
from octune.errors import ConfigError, UnsupportedError
from octune.plan import Op, Scheme
from octune.search.options import legal_ops

PER_TENSOR = Scheme.int8(granularity="per_tensor")
DENSE = (
    Scheme.int8(),
    PER_TENSOR,
    Scheme.int8("dynamic"),
    Scheme.int8("dynamic", granularity="per_tensor"),
    Scheme.bf16(),
    Scheme.fp32(),
)
OPS = (
    Op("fc1", "linear", DENSE),
    Op("fc2", "linear", DENSE),
    Op("emb", "embedding", (Scheme.int8("weight"), Scheme.fp32())),
    Op("odd", "conv2d", note="its padding has no int8 kernel"),
)


def stats(value: float = 1.0) -> TensorStats:
    observer = Observer()
    observer.update(np.array([[value, -1.0]], np.float32))
    found = observer.stats()
    assert found is not None
    return found


RANGES = Ranges({op.name: stats() for op in OPS}, 8)


def legal(options: dict[str, Any] | None = None, ranges: Ranges | None = RANGES) -> dict[str, Op]:
    return {op.name: op for op in legal_ops(OPS, Quantization.model_validate(options or {}), ranges)}


def words(op: Op) -> set[tuple[str, str | None]]:
    return {(scheme.dtype, scheme.mode) for scheme in op.schemes}


def test_by_default_everything_per_channel_with_three_range_methods() -> None:
    found = legal()["fc1"]
    assert {scheme.granularity for scheme in found.schemes} == {"per_channel", None}
    assert [scheme.range_method for scheme in found.schemes if scheme.mode == "static"] == [
        "minmax",
        "mse",
        "percentile",
    ]
    assert words(found) == {("int8", "static"), ("int8", "dynamic"), ("bf16", None), ("fp32", None)}
    assert legal()["emb"].schemes == OPS[2].schemes
    assert legal()["odd"] == OPS[3]


def test_without_calibration_nothing_is_static() -> None:
    found = legal(ranges=None)
    assert words(found["fc1"]) == {("int8", "dynamic"), ("bf16", None), ("fp32", None)}
    assert words(found["emb"]) == {("int8", "weight"), ("fp32", None)}


def test_an_op_that_never_ran_stays_fp32_and_says_why() -> None:
    found = legal(ranges=Ranges({"fc1": stats()}, 8))
    assert found["fc2"].schemes == (Scheme.fp32(),)
    assert found["fc2"].note == "never ran in calibration"


def test_an_op_with_infinite_input_stays_fp32_and_says_why() -> None:
    found = legal(ranges=Ranges({**RANGES, "fc2": stats(float("inf"))}, 8))
    assert found["fc2"].schemes == (Scheme.fp32(),)
    assert "infinite or NaN" in found["fc2"].note


@pytest.mark.parametrize(("approach", "mode"), [("static", "static"), ("dynamic", "dynamic")])
def test_approach(approach: str, mode: str) -> None:
    found = legal({"approach": approach})
    assert words(found["fc1"]) == {("int8", mode), ("bf16", None), ("fp32", None)}
    assert ("int8", "weight") in words(found["emb"])


def test_granularity_and_algorithm() -> None:
    found = legal({"weight": {"granularity": "per_tensor"}, "activation": {"algorithm": ["kl"]}})["fc1"]
    assert {scheme.granularity for scheme in found.schemes if scheme.dtype == "int8"} == {"per_tensor"}
    assert {scheme.range_method for scheme in found.schemes if scheme.mode == "static"} == {"kl"}
    both = legal({"weight": {"granularity": ["per_tensor", "per_channel"]}})["fc1"]
    assert {scheme.granularity for scheme in both.schemes if scheme.dtype == "int8"} == {
        "per_tensor",
        "per_channel",
    }


def test_a_dtype_for_all_ops_leaves_fp32_as_a_way_out() -> None:
    found = legal({"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8"}})["fc1"]
    assert words(found) == {("int8", "static"), ("int8", "dynamic"), ("fp32", None)}


def test_a_dtype_for_one_op_pins_it() -> None:
    eight = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8"}}
    float_ = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
    found = legal({"ops": {"fc1": eight, "fc2": float_, "odd": float_}})
    assert words(found["fc1"]) == {("int8", "static"), ("int8", "dynamic")}
    assert words(found["fc2"]) == {("fp32", None)}
    assert found["fc2"].note == "kept by the configuration"


def test_what_is_said_of_one_op_wins_over_what_is_said_of_all() -> None:
    ops = {"fc[12]": {"activation": {"algorithm": ["kl"]}}, "fc2": {"weight": {"dtype": "bf16"}}}
    found = legal({"activation": {"algorithm": ["minmax"]}, "ops": ops})
    assert {scheme.range_method for scheme in found["fc1"].schemes if scheme.mode == "static"} == {"kl"}
    assert words(found["fc2"]) == {("bf16", None)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weight": {"scheme": "asym"}},
            r"quantization.weight.scheme is \['asym'\] at 'fc1'.*int8 around zero",
        ),
        ({"activation": {"scheme": "sym"}}, "activation.scheme.*asym"),
        ({"activation": {"granularity": "per_channel"}}, "activation.granularity.*one range per tensor"),
        ({"weight": {"algorithm": "kl"}}, "weight.algorithm.*minmax"),
        ({"weight": {"dtype": "uint8"}}, "weight.dtype.*signed"),
        (
            {"ops": {"odd": {"weight": {"dtype": "int8"}}}},
            "asks for int8 at 'odd', which stays fp32: its padding has no int8 kernel",
        ),
        ({"ops": {"emb": {"weight": {"dtype": "bf16"}}}}, "No scheme of 'emb'"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        legal(options)


def test_an_op_pinned_to_int8_that_never_ran_is_an_error() -> None:
    with pytest.raises(
        UnsupportedError, match="asks for int8 at 'fc2', which stays fp32: never ran in calibration"
    ):
        legal({"ops": {"fc2": {"weight": {"dtype": "int8"}}}}, Ranges({"fc1": stats()}, 8))


def test_a_name_that_is_no_op_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no op has this name"):
        legal({"ops": {"fc3": {"weight": {"dtype": "fp32"}}}})
