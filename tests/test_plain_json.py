"""JSON of others: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json

import pytest

from octune.plain_json import DEEPEST, loads


@pytest.mark.parametrize("text", ['{"a": [1, {"b": null}]}', "1", '"x"', "[]", b"{}"])
def test_what_is_plain_is_read(text: str | bytes) -> None:
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize("opened", ["[", '{"a": '])
def test_nesting_has_an_end(opened: str) -> None:
    closed = "]" if opened == "[" else "}"
    assert loads(opened * DEEPEST + "1" + closed * DEEPEST)
    for deep in (DEEPEST + 1, 200_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            loads(opened * deep + "1" + closed * deep)


def test_damage_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        loads("{")
