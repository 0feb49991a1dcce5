"""Shares of multiply-adds, and how they are told."""

from __future__ import annotations

import json

import pytest

from octune.coverage import Coverage, Work, einsum_products, percent
from octune.plan import Op, Plan, Scheme

INT8 = (Scheme.int8(), Scheme.fp32())
OPS = (Op("q", "linear", INT8), Op("k", "linear", INT8), Op("v", "linear", INT8), Op("odd", "linear"))
WORK = Work(
    {"q": 600, "k": 150, "v": 50, "odd": 100},
    {"matmul": 60, "lstm": 40},
    {"Conv": 2},
    {"softmax": 6, "layer_norm": 13},
)
PLAN = Plan({"q": Scheme.int8(), "k": Scheme.fp32(), "v": Scheme.fp32(), "odd": Scheme.fp32()})
KEPT = {"k": "accuracy: 90% of the predicted harm", "v": "int8 is slower here (1 ms)", "odd": "it pads"}


def test_shares_add_up_and_reasons_are_told_apart() -> None:
    coverage = Coverage.of(PLAN, OPS, WORK, KEPT)
    assert coverage is not None
    assert (coverage.int8, coverage.bf16, coverage.fp32) == (0.6, 0.0, 0.4)
    assert coverage.multiply_adds == 1000
    assert sum(coverage.why.values()) == pytest.approx(coverage.fp32)
    assert coverage.unseen == {"matmul": 0.06, "lstm": 0.04}
    assert str(coverage) == (
        "60% int8, 15% fp32 for accuracy, 10% fp32 without an int8 form here, "
        "10% fp32 not seen (matmul, lstm), 5% fp32 because int8 is slower"
    )
    assert coverage.beside == "not counted: Conv 2; multiply nothing: layer_norm 13, softmax 6"
    assert json.loads(json.dumps(coverage.to_json()))["why"]["for accuracy"] == 0.15


def test_of_fp32_no_reasons_are_known() -> None:
    coverage = Coverage.of(Plan({name: Scheme.fp32() for name in PLAN}), (), Work({"q": 3, "k": 1}))
    assert coverage is not None
    assert str(coverage) == "100% fp32"


def test_bf16_is_a_share_of_its_own() -> None:
    coverage = Coverage.of(PLAN.with_(k=Scheme.bf16()), OPS, WORK)
    assert coverage is not None
    assert (coverage.bf16, coverage.fp32) == (0.15, 0.25)


def test_nothing_counted_is_no_coverage() -> None:
    assert Coverage.of(PLAN, OPS, Work({}, {}, {"LSTM": 1})) is None


def test_work_is_plain_data() -> None:
    assert Work.from_json(json.loads(json.dumps(WORK.to_json()))) == WORK


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (0.001, "<1%"), (0.5, "50%"), (0.999, ">99%"), (1.0, "100%")]
)
def test_a_share_is_all_or_nothing_only_if_it_is(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 24),
        ("bqhd, bkhd -> bhqk", [(2, 5, 3, 8), (2, 7, 3, 8)], 2 * 5 * 7 * 3 * 8),
        ("...d,od->...o", [(2, 5, 8), (4, 8)], 2 * 5 * 8 * 4),
        ("ij->ji", [(2, 3)], 0),
    ],
)
def test_an_einsum_multiplies_over_all_letters(
    equation: str, shapes: list[tuple[int, ...]], products: int
) -> None:
    assert einsum_products(equation, shapes) == products
