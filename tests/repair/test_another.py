"""Another repair is one object: every backend offers it, and it changes the weights that it should."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Any

import numpy as np
import pytest

from octune.backends import Settings, backend_for
from octune.calibration import Ranges, collect
from octune.config.limits import Quantization
from octune.cost.table import _kernel
from octune.errors import PlanError
from octune.int8 import Int8Weight
from octune.plan import Plan, Scheme
from octune.repair import BIAS, REPAIRS, SMOOTH, Repair, repairs_of, static_schemes, without_bias
from octune.search.options import legal_ops
from tests.backends.saturation import Shape
from tests.backends.test_agreement import FRAMEWORKS, Array

SHAPES = (Shape(32, 24), Shape(16, 24, 3), Shape(16, 16, 3, 16))


def clipped(weight: Array) -> Array:
    """Nothing beyond 1."""
    return np.clip(weight, -1.0, 1.0)


CLIP = Repair("clip", weight=clipped)
CLIPPED, BOTH = Scheme.int8(repairs=("clip",)), Scheme.int8(repairs=("clip", "bias"))
SMOOTHED = Scheme.int8(repairs=("clip", "smooth"))


@pytest.fixture(autouse=True)
def another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octune.repair.REPAIRS", (*REPAIRS, CLIP))


def case(framework: str, shape: Shape) -> tuple[Any, Any, Ranges, Array, Array]:
    """A backend that was shown an op with a few weights beyond 1."""
    random = np.random.default_rng(0)
    kernel = [shape.kernel] * (2 if shape.kernel else 0)
    weight = random.uniform(-1, 1, (shape.outputs, shape.inputs // shape.groups, *kernel)).astype(np.float32)
    weight.reshape(shape.outputs, -1)[:, 0] = 3.0
    size = (6, shape.inputs, 8, 8) if shape.kernel else (200, shape.inputs)
    x = random.uniform(0.0, 2.0, size).astype(np.float32)
    backend = backend_for(FRAMEWORKS[framework].build(shape, weight), Settings())
    inputs = backend.split(FRAMEWORKS[framework].batch(x))[0]
    backend.prepare(inputs)
    return backend, inputs, collect(backend, [inputs], 1), weight, x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_backend_offers_and_applies_it(framework: str, shape: Shape) -> None:
    backend, inputs, ranges, weight, x = case(framework, shape)
    (op,) = [op for op in backend.ops() if op.can("int8")]
    assert {CLIPPED, BOTH} <= set(op.schemes)

    def answer(scheme: Scheme) -> Array:
        (y,) = backend.run(backend.apply(Plan({op.name: scheme}), ranges), inputs).values()
        return FRAMEWORKS[framework].channels_first(y) if shape.kernel else y

    def product(floats: Array) -> Array:
        return shape.sums(x.astype(np.float64), Int8Weight(floats, np.ones(1)))[0]

    exact, wanted = product(weight), product(clipped(weight))
    assert np.abs(exact - wanted).mean() > 0.5, "the case is meant to show a difference"
    assert np.abs(answer(Scheme.int8()) - exact).mean() < 0.1
    assert np.abs(answer(CLIPPED) - wanted).mean() < 0.1
    # The bias is corrected for what the clipping takes away, too.
    mean = {"axis": (0, 2, 3) if shape.kernel else 0}
    assert np.abs((wanted - exact).mean(**mean)).min() > 1.5
    assert np.abs((answer(BOTH) - exact).mean(**mean)).max() < 0.2
    harm = backend.harm({op.name: [Scheme.int8(), CLIPPED, BOTH]}, ranges, [inputs])
    assert harm[op.name, CLIPPED] > harm[op.name, BOTH] > harm[op.name, Scheme.int8()] > 0
    backend.close()


def test_it_is_offered_alone_and_with_a_corrected_bias() -> None:
    assert [scheme.repairs for scheme in static_schemes()] == [
        (),
        ("bias",),
        ("smooth",),
        ("clip",),
        ("smooth", "bias"),
        ("clip", "bias"),
        (),
    ]


def test_other_weights_cost_no_time_and_need_one_range() -> None:
    backend, _, ranges, _, _ = case("torch", SHAPES[0])
    (op,) = legal_ops(backend.ops(), Quantization(), ranges)
    assert [s.range_method for s in op.schemes if s.repairs == ("clip",)] == ["mse"]
    assert [s.range_method for s in op.schemes if s.repairs == ("smooth",)] == ["minmax"]
    assert _kernel(CLIPPED) == _kernel(BOTH) == _kernel(Scheme.int8()) != _kernel(SMOOTHED)


def test_what_repairs_say_of_themselves() -> None:
    assert [repair.changes_only_bias for repair in (BIAS, SMOOTH, CLIP)] == [True, False, False]
    assert [repair.changes_kernel for repair in (BIAS, SMOOTH, CLIP)] == [False, True, False]
    assert [repair.has_own_range for repair in (BIAS, SMOOTH, CLIP)] == [False, True, False]
    assert without_bias(BOTH) == CLIPPED == without_bias(CLIPPED)
    assert repairs_of(BOTH) == (CLIP, BIAS)
    assert repairs_of(Scheme.int8("dynamic")) == repairs_of(Scheme.fp32()) == ()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "scheme", [Scheme.int8(repairs=("magic",)), Scheme.int8("dynamic", repairs=("clip",))]
)
def test_every_backend_refuses_what_it_does_not_know(framework: str, scheme: Scheme) -> None:
    backend, _, ranges, _, _ = case(framework, SHAPES[0])
    (op,) = [op for op in backend.ops() if op.can("int8")]
    with pytest.raises(PlanError, match=f"has no repair named {scheme.repairs[0]!r}"):
        backend.apply(Plan({op.name: scheme}), ranges)
    backend.close()
