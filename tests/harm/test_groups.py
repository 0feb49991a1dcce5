"""Ops that are harmful only together are found in a few looks at parts of a plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.harm import interacting
from octune.plan import Plan, Scheme

OPS = [f"op{i:02}" for i in range(32)]
PLAN = Plan({op: Scheme.int8() for op in OPS})
ALONE = dict.fromkeys(OPS, 1e-6)


class PlanProbe:
    """Every op does a little harm, and sets of ops much more; counts how often it is asked."""

    def __init__(self, *together: set[str], harm: float = 0.5) -> None:
        self.together, self.harm, self.asked = together, harm, 0

    def __call__(self, plan: Plan) -> float:
        self.asked += 1
        return 1e-6 * len(plan) + sum(self.harm for ops in self.together if ops <= set(plan))


def test_where_harms_add_up_one_look_is_enough() -> None:
    plan_probe = PlanProbe()
    assert interacting(plan_probe, PLAN, ALONE) == []
    assert plan_probe.asked == 1


@settings(max_examples=50)
@given(st.sets(st.sampled_from(OPS), min_size=1, max_size=3))
def test_a_group_is_found_wherever_its_ops_stand(ops: set[str]) -> None:
    plan_probe = PlanProbe(ops)
    (group,) = interacting(plan_probe, PLAN, ALONE)
    assert set(group.ops) == ops
    assert group.harm == pytest.approx(0.5, abs=1e-4)
    assert group.alone == pytest.approx(1e-6 * len(ops))
    assert plan_probe.asked <= 24


def test_two_groups_are_told_apart() -> None:
    groups = interacting(PlanProbe({"op03", "op04"}, {"op20", "op21"}, harm=0.5), PLAN, ALONE, probes=60)
    assert {group.ops for group in groups} == {("op03", "op04"), ("op20", "op21")}


def test_looks_are_counted() -> None:
    plan_probe = PlanProbe(set(OPS[::3]))
    interacting(plan_probe, PLAN, ALONE, probes=10)
    assert plan_probe.asked <= 12


def test_what_does_not_matter_is_not_looked_into() -> None:
    plan_probe = PlanProbe({"op03", "op04"}, harm=1e-3)
    assert interacting(plan_probe, PLAN, ALONE, floor=2e-3) == []
    assert plan_probe.asked == 1
