"""The harm of whole plans, on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octune.backends import Settings, backend_for
from octune.calibration import Ranges, collect
from octune.engine import Journal
from octune.harm import WORST, PlanProbe
from octune.plan import Plan, Scheme
from tests.digits import digits

INT8 = Scheme.int8()


@pytest.fixture(scope="module")
def prepared() -> tuple[Any, Ranges, list[Any]]:
    backend = backend_for(digits().model(), Settings())
    inputs = [backend.split(batch)[0] for batch in digits().batches()]
    return backend, collect(backend, inputs, 64), inputs


def test_fp32_does_no_harm_and_int8_a_little(prepared: tuple[Any, Ranges, list[Any]]) -> None:
    backend, ranges, inputs = prepared
    plan_probe = PlanProbe(backend, ranges, inputs, Journal())
    names = [op.name for op in backend.ops()]
    assert plan_probe(Plan()) == plan_probe(Plan(dict.fromkeys(names, Scheme.fp32()))) == 0.0
    assert 0 < plan_probe(Plan({names[0]: INT8})) < 0.01
    assert plan_probe(Plan({names[0]: INT8})) < plan_probe(Plan(dict.fromkeys(names, INT8)))


def test_answers_are_kept_in_the_journal(prepared: tuple[Any, Ranges, list[Any]], tmp_path: Path) -> None:
    backend, ranges, inputs = prepared
    plan = Plan({backend.ops()[0].name: INT8})
    with Journal.open(tmp_path, {}) as journal:
        harm = PlanProbe(backend, ranges, inputs, journal)(plan)
    with Journal.open(tmp_path, {}, resume=True) as journal:
        again = PlanProbe(None, ranges, [], journal)  # type: ignore[arg-type]  # nothing is there to run
        assert again(plan) == harm
    with Journal.open(tmp_path, {}, resume=True) as journal, pytest.raises(AttributeError):
        PlanProbe(None, Ranges({}, 5), [], journal)(plan)  # type: ignore[arg-type]  # other ranges, another answer


def test_a_plan_that_does_not_run_is_the_worst(prepared: tuple[Any, Ranges, list[Any]]) -> None:
    backend, ranges, inputs = prepared

    class Broken(type(backend)):  # type: ignore[misc]
        def run(self, model: Any, inputs: Any) -> Any:
            if any("Int8" in type(module).__name__ for module in model.modules()):
                raise RuntimeError("no kernel")
            return super().run(model, inputs)

    broken = Broken(digits().model(), Settings())
    plan_probe = PlanProbe(broken, ranges, inputs, Journal())
    assert plan_probe(Plan({broken.ops()[0].name: INT8})) == WORST
    assert plan_probe(Plan()) == 0.0


def test_nan_is_the_worst_too(prepared: tuple[Any, Ranges, list[Any]]) -> None:
    backend, ranges, inputs = prepared

    class Lost(type(backend)):  # type: ignore[misc]
        def apply(self, plan: Plan, ranges: Ranges) -> Any:
            model = super().apply(plan, ranges)
            if plan:
                model.register_forward_hook(lambda module, args, output: output * torch.nan)
            return model

    assert (
        PlanProbe(Lost(digits().model(), Settings()), ranges, inputs, Journal())(Plan({"0": INT8})) == WORST
    )
