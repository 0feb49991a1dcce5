"""Plans are data: immutable, hashable, JSON, and the same in every process."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.errors import PlanError
from octune.plan import Op, Plan, Scheme

granularities = st.sampled_from(["per_channel", "per_tensor"])
repairs = st.lists(st.text(min_size=1), max_size=3).map(tuple)
schemes = st.one_of(
    st.just(Scheme.fp32()),
    st.just(Scheme.bf16()),
    st.builds(
        Scheme,
        st.just("int8"),
        st.just("static"),
        granularities,
        st.sampled_from(["minmax", "percentile", "mse", "kl"]),
        repairs,
    ),
    st.builds(
        Scheme, st.just("int8"), st.sampled_from(["dynamic", "weight"]), granularities, st.none(), repairs
    ),
)
plans = st.dictionaries(st.text(), schemes, max_size=6).map(Plan)


# -- schemes -------------------------------------------------------------------------------------------------


@given(schemes)
def test_scheme_json_round_trip(scheme: Scheme) -> None:
    assert Scheme.from_json(json.loads(json.dumps(scheme.to_json()))) == scheme


@given(schemes)
def test_str_of_a_scheme_begins_with_its_dtype(scheme: Scheme) -> None:
    assert str(scheme).split()[0] == scheme.dtype
    assert scheme.is_float == (scheme.dtype in ("fp32", "bf16"))


def test_scheme_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scheme.int8().dtype = "fp32"  # type: ignore[misc]


def test_int8_defaults() -> None:
    assert Scheme.int8() == Scheme("int8", "static", "per_channel", "minmax")
    assert Scheme.int8("dynamic").range_method is None
    assert Scheme.int8("weight").range_method is None
    assert Scheme.int8(repairs=["bias"]).repairs == ("bias",)
    assert str(Scheme.int8(repairs=["bias"])) == "int8 static per_channel minmax +bias"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "int4"}, "'dtype' of a scheme must be one of fp32, bf16, int8. Got 'int4'"),
        ({"dtype": "int8"}, "needs a mode and a granularity"),
        ({"dtype": "int8", "mode": "static"}, "needs a mode and a granularity"),
        ({"dtype": "int8", "mode": "often", "granularity": "per_channel"}, "'mode'"),
        ({"dtype": "int8", "mode": "static", "granularity": "per_channel"}, "range method belongs to static"),
        (
            {"dtype": "int8", "mode": "dynamic", "granularity": "per_channel", "range_method": "kl"},
            "range method belongs to static",
        ),
        (
            {"dtype": "int8", "mode": "static", "granularity": "per_row", "range_method": "kl"},
            "'granularity'",
        ),
        (
            {"dtype": "int8", "mode": "static", "granularity": "per_channel", "range_method": "guess"},
            "'range_method'",
        ),
        ({"dtype": "fp32", "mode": "static"}, "fp32 scheme has no mode"),
        ({"dtype": "bf16", "repairs": ["bias"]}, "bf16 scheme has no mode"),
        ({"dtype": ["int8"]}, "'dtype'"),
        ({}, "mapping with a dtype"),
        ({"dtype": "fp32", "bits": 8}, "has the fields dtype, mode"),
        ("int8", "mapping with a dtype"),
    ],
)
def test_impossible_schemes_are_refused(fields: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Scheme.from_json(fields)  # type: ignore[arg-type]


# -- plans ---------------------------------------------------------------------------------------------------


@given(plans)
def test_plan_json_round_trip(plan: Plan) -> None:
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.digest == plan.digest


@given(st.dictionaries(st.text(), schemes, max_size=6), st.randoms())
def test_order_does_not_matter(entries: dict[str, Scheme], random: object) -> None:
    shuffled = list(entries.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Plan(shuffled) == Plan(entries)
    assert Plan(shuffled).digest == Plan(entries).digest
    assert list(Plan(shuffled)) == sorted(entries)


@given(plans, plans)
def test_plans_are_equal_exactly_when_their_digests_are(one: Plan, other: Plan) -> None:
    assert (one == other) == (one.digest == other.digest)
    assert len({one, other}) == (1 if one == other else 2)


@given(plans)
def test_plan_survives_pickle_and_deepcopy(plan: Plan) -> None:
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan


def test_plan_is_immutable() -> None:
    entries = {"a": Scheme.fp32()}
    plan = Plan(entries)
    digest = plan.digest
    entries["a"] = Scheme.bf16()
    entries["b"] = Scheme.bf16()
    assert dict(plan) == {"a": Scheme.fp32()}
    with pytest.raises(TypeError):
        plan["a"] = Scheme.bf16()  # type: ignore[index]
    with pytest.raises(TypeError):
        del plan["a"]  # type: ignore[attr-defined]
    changed = plan.with_(a=Scheme.int8(), b=Scheme.fp32())
    assert plan["a"] == Scheme.fp32()
    assert plan.digest == digest != changed.digest
    assert dict(changed) == {"a": Scheme.int8(), "b": Scheme.fp32()}


def test_a_plan_is_not_equal_to_a_dict() -> None:
    assert Plan({"a": Scheme.fp32()}) != {"a": Scheme.fp32()}


def test_equal_plans_have_equal_digests_in_every_process() -> None:
    plan = Plan(
        {
            "encoder.0": Scheme.int8(range_method="mse", repairs=("b", "a")),
            "ä\n\ud800": Scheme.bf16(),
            "c": Scheme.int8("dynamic"),
        }
    )
    code = (
        "import json,sys; from octune.plan import Plan; p=Plan.from_json(json.loads(sys.stdin.read())); "
        "print(p.digest, hash(p))"
    )
    reversed_json = json.dumps(dict(reversed(plan.to_json().items())))
    for seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=reversed_json,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.split() == [plan.digest, str(hash(plan))]


def test_the_digest_is_pinned() -> None:
    # Journals and saved models of earlier versions are found again by this number: it must never change.
    plan = Plan({"a": Scheme.int8(), "b": Scheme.fp32()})
    assert plan.digest == "0a14c132025c686f94fe1d5a21b9eee681adaf49d8844c75b48e49c7b736a558"


def test_names_counts_and_repr() -> None:
    plan = Plan({"a": Scheme.int8(), "b": Scheme.fp32(), "c": Scheme.int8("dynamic")})
    assert plan.names("int8") == ["a", "c"]
    assert plan.counts() == {"int8": 2, "fp32": 1}
    assert repr(plan) == f"Plan(1 fp32, 2 int8; {plan.digest[:8]})"
    assert repr(Plan()).startswith("Plan(empty; ")


@pytest.mark.parametrize("entries", [{"a": "int8"}, {1: Scheme.fp32()}])
def test_only_names_and_schemes_make_a_plan(entries: dict[object, object]) -> None:
    with pytest.raises(PlanError, match="maps op names to Schemes"):
        Plan(entries)  # type: ignore[arg-type]


def test_json_that_is_no_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="mapping from op names to schemes"):
        Plan.from_json(["a"])  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="mapping with a dtype"):
        Plan.from_json({"a": None})


# -- a plan against a model ----------------------------------------------------------------------------------

OPS = (
    Op("fc", "linear", (Scheme.int8(), Scheme.int8("dynamic"), Scheme.fp32())),
    Op("odd", "conv2d", note="its padding has no int8 kernel"),
)


def test_check_takes_what_the_ops_can_do() -> None:
    Plan({"fc": Scheme.int8(range_method="kl", repairs=["bias"]), "odd": Scheme.fp32()}).check(OPS)
    Plan().check(OPS)


def test_check_names_an_op_that_is_not_there() -> None:
    with pytest.raises(PlanError, match=r"names an op 'fd', which the model does not have\. It has: fc, odd"):
        Plan({"fd": Scheme.fp32()}).check(OPS)


def test_check_names_what_an_op_can_do_instead() -> None:
    with pytest.raises(
        PlanError,
        match="asks for bf16 at 'fc', which can run in: int8 static per_channel minmax, int8 dynamic",
    ):
        Plan({"fc": Scheme.bf16()}).check(OPS)
    with pytest.raises(PlanError, match="its padding has no int8 kernel"):
        Plan({"odd": Scheme.int8()}).check(OPS)


def test_can() -> None:
    assert OPS[0].can("int8")
    assert not OPS[1].can("int8")
    assert not OPS[0].can("bf16")
