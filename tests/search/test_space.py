"""The space: what is fastest, and the way back to float."""

from __future__ import annotations

import pytest

from octune.plan import Op, Plan, Scheme
from octune.search import Space
from octune.search.space import CLEARLY_SLOWER
from tests.search.simulated import BF16, DYNAMIC, FP32, INT8

MSE = Scheme.int8(range_method="mse")


def space(cost: dict[Scheme, float], harm: dict[Scheme, float] | None = None, schemes: tuple[Scheme, ...] | None = None) -> Space:
    choices = tuple(cost) if schemes is None else schemes
    return Space({"a": choices}, {("a", s): v for s, v in (harm or {}).items()}, {("a", s): v for s, v in cost.items()})


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ({INT8: 1.0, DYNAMIC: 2.0, FP32: 3.0}, INT8),
        ({INT8: 1.0, DYNAMIC: 0.9, FP32: 3.0}, INT8),  # dynamic must be clearly faster
        ({INT8: 1.0, DYNAMIC: 0.5, FP32: 3.0}, DYNAMIC),
        ({INT8: 3.0, DYNAMIC: 4.0, FP32: 1.0}, FP32),  # int8 is clearly slower here
        ({INT8: 1.1, FP32: 1.0}, INT8),  # within the noise int8 stays: it is smaller
        ({BF16: 0.5, FP32: 1.0}, FP32),  # bf16 is no reason by itself
        ({FP32: 1.0}, FP32),
        ({INT8: 1.0}, INT8),
    ],
)
def test_fastest(cost: dict[Scheme, float], expected: Scheme) -> None:
    assert space(cost).fastest() == Plan({"a": expected})


def test_of_equally_fast_schemes_the_least_harmful_is_taken() -> None:
    assert space({INT8: 1.0, MSE: 1.0, FP32: 3.0}, {INT8: 0.2, MSE: 0.1}).fastest()["a"] == MSE
    assert space({INT8: 1.0, MSE: 1.0, FP32: 3.0}, {INT8: 0.1, MSE: 0.1}).fastest()["a"] == INT8  # the first of equals


def test_without_any_timing_static_int8_is_taken() -> None:
    assert space({}, schemes=(DYNAMIC, INT8, BF16, FP32)).fastest()["a"] == INT8


def test_an_op_too_small_to_matter_stays_int8() -> None:
    costs = {("big", INT8): 10.0, ("big", FP32): 100.0, ("tiny", INT8): 0.03, ("tiny", FP32): 0.01}
    both = Space({"big": (INT8, FP32), "tiny": (INT8, FP32)}, {}, costs)
    assert both.fastest() == Plan({"big": INT8, "tiny": INT8})
    assert costs["tiny", INT8] > CLEARLY_SLOWER * costs["tiny", FP32]


def test_the_chain_leads_to_all_float_the_most_relief_first() -> None:
    harm = {("a", INT8): 0.1, ("b", INT8): 0.5, ("c", INT8): 0.01, ("d", INT8): 0.2}
    cost = {(op, scheme): {"int8": 1.0, "fp32": 3.0}[scheme.dtype] for op in "abcd" for scheme in (INT8, FP32)}
    made = Space({**dict.fromkeys("abcd", (INT8, FP32)), "e": (FP32,), "f": (INT8,)}, harm, cost)
    chain = made.chain()
    assert [step.op for step in chain] == ["b", "d", "a", "c"]
    assert all(step.scheme == FP32 for step in chain)
    assert [step.relief for step in chain] == [0.5, 0.2, 0.1, 0.01]
    plan = made.fastest().with_({step.op: step.scheme for step in chain})
    assert plan.names("int8") == ["f"]


def test_relief_is_weighed_against_time() -> None:
    harm = {("cheap", INT8): 0.2, ("dear", INT8): 0.3}
    cost = {("cheap", INT8): 1.0, ("cheap", FP32): 1.5, ("dear", INT8): 10.0, ("dear", FP32): 30.0}
    made = Space(dict.fromkeys(("cheap", "dear"), (INT8, FP32)), harm, cost)
    assert [step.op for step in made.chain()] == ["cheap", "dear"]


def test_total_harm_adds_up() -> None:
    harm = {("a", INT8): 0.1, ("b", INT8): 0.5}
    made = Space(dict.fromkeys("ab", (INT8, FP32)), harm)
    assert made.total_harm(made.fastest()) == pytest.approx(0.6)
    assert made.total_harm(Plan({"a": FP32, "b": INT8})) == 0.5
    assert made.milliseconds("a", INT8) == 0.0


def test_of_ops() -> None:
    made = Space.of([Op("a", "linear", (INT8, FP32)), Op("b", "conv2d")])
    assert dict(made.choices) == {"a": (INT8, FP32), "b": (FP32,)}
    assert made.fastest() == Plan({"a": INT8, "b": FP32})


SMOOTHED = Scheme.int8(repairs=("smooth",))


def repairable(after: float, milliseconds: float = 1.2) -> Space:
    harm = {("a", INT8): 1.0, ("a", SMOOTHED): after}
    cost = {("a", INT8): 1.0, ("a", SMOOTHED): milliseconds, ("a", FP32): 4.0}
    return Space({"a": (INT8, SMOOTHED, FP32)}, harm, cost)


def test_an_op_is_repaired_before_it_goes_to_float() -> None:
    made = repairable(0.01)
    assert made.fastest() == Plan({"a": INT8}), "nothing is repaired that was not found guilty"
    assert [step.scheme for step in made.chain()] == [SMOOTHED, FP32]
    assert [step.relief for step in made.chain()] == [pytest.approx(0.99), pytest.approx(0.01)]


@pytest.mark.parametrize("made", [repairable(0.5), repairable(0.01, milliseconds=5.0)], ids=["helps too little", "slower than float"])
def test_a_repair_that_is_not_worth_it_is_passed_over(made: Space) -> None:
    assert [step.scheme for step in made.chain()] == [FP32]
