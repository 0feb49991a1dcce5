"""The path: nested plans from the fastest to float, the most harm removed for its cost first."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.plan import Plan
from octune.search.ladder import Ladder, Rung, pareto, raised
from octune.search.path import first_below, path
from tests.search.simulated import BF16, FP32, INT8, REPAIRED


def ladder(harm: float, repaired: float, fp32: float = 1.0) -> Ladder:
    return pareto(Rung(INT8, harm, 0.0), [Rung(REPAIRED, repaired, 0.1 * fp32), Rung(FP32, 0.0, fp32)])


numbers = st.floats(1e-6, 1.0)
ladders = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=8).map(
    lambda rows: {f"op{i}": ladder(*row) for i, row in enumerate(rows)}
)


def start(ladders: dict[str, Ladder]) -> Plan:
    return Plan({op: rungs[0].scheme for op, rungs in ladders.items()})


@settings(max_examples=60)
@given(ladders)
def test_every_step_is_one_op_further_up_and_each_gains_less_than_the_one_before(
    ladders: dict[str, Ladder],
) -> None:
    def total(plan: Plan, what: str) -> float:
        return sum(
            getattr(rung, what) for op, rungs in ladders.items() for rung in rungs if rung.scheme == plan[op]
        )

    plans = path(ladders, start(ladders))
    gains = []
    for before, after in pairwise(plans):
        assert sum(before[op] != after[op] for op in ladders) == 1
        removed, cost = (
            (total(before, "harm") - total(after, "harm")),
            total(after, "cost") - total(before, "cost"),
        )
        assert removed > -1e-12
        assert cost > 0
        gains.append(removed / cost)
    assert gains == pytest.approx(sorted(gains, reverse=True), rel=1e-6, abs=1e-6)
    assert all(plan.names("int8") for plan in plans)  # how fp32 scores is known


def test_the_worst_op_is_repaired_before_a_harmless_one_falls() -> None:
    plans = path({"a": ladder(0.5, 0.01), "b": ladder(0.001, 0.001)}, Plan({"a": INT8, "b": INT8}))
    assert plans == [
        Plan({"a": INT8, "b": INT8}),
        Plan({"a": REPAIRED, "b": INT8}),
        Plan({"a": FP32, "b": INT8}),
    ]


def test_a_repair_that_is_hardly_one_is_passed_by() -> None:
    plans = path({"a": ladder(0.5, 0.49), "b": ladder(0.1, 0.1)}, Plan({"a": INT8, "b": INT8}))
    assert plans[1]["a"] == FP32


def test_it_can_begin_anywhere() -> None:
    rungs = {"a": ladder(0.5, 0.01), "b": ladder(0.1, 0.001)}
    assert path(rungs, Plan({"a": REPAIRED, "b": INT8}))[:2] == [
        Plan({"a": REPAIRED, "b": INT8}),
        Plan({"a": REPAIRED, "b": REPAIRED}),
    ]


def test_an_op_without_a_way_out_stays() -> None:
    rungs = {"a": (Rung(INT8, 0.5, 0.0),), "b": ladder(0.1, 0.001)}
    assert all(plan["a"] == INT8 for plan in path(rungs, Plan({"a": INT8, "b": INT8})))
    assert path({"a": (Rung(FP32, 0.0, 0.0),)}, Plan({"a": FP32})) == [Plan({"a": FP32})]


def test_the_first_plan_below_a_harm_is_found_in_a_few_looks() -> None:
    plans = [Plan({f"op{i}": INT8 for i in range(count)}) for count in range(64, 0, -1)]
    looks = []

    def harm(plan: Plan) -> float:
        looks.append(plan)
        return float(len(plan))

    assert first_below(harm, plans, 20.0, -1, 63) == 44
    assert len(looks) <= 6
    assert first_below(harm, plans, 0.0, -1, 63) == 63


def test_what_is_harmful_together_raises_a_ladder_and_repairs_help_as_before() -> None:
    made = raised(ladder(0.1, 0.01), 0.3)
    assert [rung.harm for rung in made] == pytest.approx([0.4, 0.04, 0.0])
    unseen = raised((Rung(INT8, 0.0, 0.0), Rung(BF16, 0.0, 1.0), Rung(FP32, 0.0, 2.0)), 0.3)
    assert [rung.harm for rung in unseen] == [0.3, 0.0, 0.0]
