"""The public stress cases: outlier channels that break plain int8, and what `auto` makes of them (see also
benchmarks/search).
"""

from __future__ import annotations

from typing import Any

import pytest

import octune
from octune.backends import Settings, backend_for
from octune.calibration import collect
from octune.plan import Plan, Scheme
from tests.scripts import load_script


@pytest.fixture(scope="module")
def cases() -> Any:
    return load_script("benchmarks/search/cases.py")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed", "ops"), [("cnn", 1, 8), ("transformer", 2, 34)])
def test_everything_is_int8_after_one_evaluation_beside_fp32s(
    cases: Any, name: str, seed: int, ops: int
) -> None:
    case = cases.CASES[name](seed)
    backend = backend_for(case.model, Settings())
    inputs = [backend.split(batch)[0] for batch in case.calibration]
    backend.prepare(inputs[0])
    ranges = collect(backend, inputs, 256)
    plain = backend.apply(Plan({op.name: Scheme.int8() for op in backend.ops()}), ranges)
    assert case.accuracy(plain) < 0.98 * case.accuracy(case.model), "the case is meant to be hard"
    config = {
        "performance": {"compile": "never", "iterations": 1, "threads": 1},
        "tuning": {"objective": "modelsize"},
    }
    result = octune.tune(
        case.model, calibration=case.calibration, evaluation=case.evaluation, metric="accuracy", config=config
    )
    assert result.met, str(result)
    assert len(result.trials) == 1
    assert result.plan.counts() == {"int8": ops}
    assert 1 <= sum(bool(scheme.repairs) for scheme in result.plan.values()) < ops / 2
