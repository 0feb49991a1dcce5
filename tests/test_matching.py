"""Which input and output of one model is which of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octune.backends.batches import Fitting, Inputs, Slot
from octune.backends.opened import Opened, Port, Source
from octune.errors import DataError, ModelError
from octune.matching import match_inputs, match_outputs

IDS, FLOATS = np.zeros((2, 7), np.int32), np.zeros((2, 3), np.float32)


class Declared(Opened):
    """A model that is never run."""

    def __init__(self, *ports: Port) -> None:
        slots = [Slot(port.name, port.name, port.dtype or np.dtype("f"), port.shape) for port in ports]
        super().__init__(Source("graph", "model"), ports, Fitting(slots), size=0)

    def _run(self, inputs: Inputs) -> dict[str, Any]:
        raise NotImplementedError


def ids(name: str) -> Port:
    return Port(name, np.dtype(np.int64), (None, None))


def floats(name: str, width: int | None = 3) -> Port:
    return Port(name, np.dtype(np.float32), (None, width))


@pytest.mark.parametrize(
    ("given", "ports", "found"),
    [
        ({"a": IDS, "b": IDS}, [ids("b"), ids("a")], {"a": "a", "b": "b"}),
        ({"a": IDS, "extra": IDS}, [ids("a")], {"a": "a"}),
        ({"a": IDS}, [ids("serving_default_A:0")], {"serving_default_A:0": "a"}),
        ({"a": IDS, "b": FLOATS}, [floats("x"), ids("y")], {"x": "b", "y": "a"}),
        ({"a": FLOATS}, [Port("anything")], {"anything": "a"}),
        ({"a": IDS}, [ids("a"), Port("optional", required=False)], {"a": "a"}),
    ],
)
def test_inputs_by_name_then_by_type_and_shape(given: Any, ports: list[Port], found: dict[str, str]) -> None:
    assert match_inputs(given, Declared(*ports)) == found


@pytest.mark.parametrize(
    ("given", "ports"),
    [
        ({"a": IDS, "b": IDS}, [ids("x"), ids("y")]),  # either way round
        ({"a": IDS}, [ids("a"), ids("mask")]),
        ({"a": FLOATS}, [ids("x")]),
        ({"a": FLOATS, "b": IDS}, [floats("x", 4), ids("y")]),
    ],
)
def test_inputs_that_could_be_anything_are_refused_with_both_lists(given: Any, ports: list[Port]) -> None:
    with pytest.raises(DataError) as refused:
        match_inputs(given, Declared(*ports))
    assert all(f"{name} (" in str(refused.value) for name in [*given, *(port.name for port in ports)])


def test_outputs_by_name_then_by_position() -> None:
    model, wide = Declared(), np.zeros((2, 9), np.float32)
    two = {"logits": FLOATS, "hidden": wide}
    assert match_outputs(two, {"hidden": wide, "logits": FLOATS}, model, model) == {
        "logits": "logits",
        "hidden": "hidden",
    }
    assert match_outputs(two, {"logits": FLOATS}, model, model) == {"logits": "logits"}
    assert match_outputs(two, {"0": FLOATS, "1": wide}, model, model) == {"logits": "0", "hidden": "1"}
    assert match_outputs(two, {"output_0": wide}, model, model) == {"hidden": "output_0"}
    for other in ({"0": wide, "1": FLOATS}, {"logits": wide}, {"x": IDS}, {}):
        with pytest.raises(ModelError, match=r"logits \[2, 3\], hidden \[2, 9\]"):
            match_outputs(two, other, model, model)
