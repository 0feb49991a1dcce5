"""What is known before anything is evaluated: harm and cost of every op, and the plan that would be tried
first.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from octune.analysis import Analysis, analyze
from octune.errors import ConfigError
from octune.report.analysis import analysis_table
from tests.digits import config, digits


def with_outliers(factor: float = 300.0) -> nn.Sequential:
    """Three channels before the second linear are ``factor`` times as large; in fp32 the model computes the
    same.
    """
    model = digits().model()
    with torch.no_grad():
        model[0].weight[:3] *= factor
        model[0].bias[:3] *= factor
        model[2].weight[:, :3] /= factor
    return model


@pytest.fixture(scope="module")
def hard() -> Analysis:
    return analyze(with_outliers(), calibration=digits().batches(), config=config())


def test_the_guilty_op_comes_first_and_would_be_repaired(hard: Analysis) -> None:
    assert hard.ranked[0].op.name == "2"
    assert hard.start["2"].repairs
    assert not hard.start["0"].repairs
    assert hard.start_harm < 0.1 * hard.fastest_harm
    assert all(row.harm[scheme] >= 0 for row in hard.rows for scheme in row.harm)
    assert all(set(row.cost) == set(row.op.schemes) for row in hard.rows)


def test_where_nothing_is_wrong_nothing_is_repaired() -> None:
    easy = analyze(digits().model(), calibration=digits().batches(), config=config())
    assert not any(scheme.repairs for scheme in easy.start.values())
    assert easy.groups == ()
    assert easy.start_harm == easy.fastest_harm


def test_it_is_plain_data(hard: Analysis) -> None:
    data = json.loads(json.dumps(hard.to_json(), allow_nan=False))
    assert [op["name"] for op in data["ops"]] == ["0", "2", "4"]
    assert data["ops"][1]["start"]["repairs"]
    assert {"scheme", "harm", "cost"} <= set(data["ops"][0]["schemes"][0])
    assert data["cost_unit"] == "bytes"
    assert data["coverage"]["int8"] == 1.0


def test_it_can_be_read(hard: Analysis) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(analysis_table(hard))
    text = console.export_text()
    assert "auto begins with: 3 int8, 1 repaired" in text
    assert "a loss of 1 % is unlikely" in text
    assert "of its multiply-adds: 100% int8" in text
    assert "multiply nothing: relu 2" in text


def test_it_can_be_read_in_80_columns(hard: Analysis) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(analysis_table(hard, width=80))
    lines = console.export_text().splitlines()
    for row in hard.ranked:
        assert f"{row.op.name} ({row.op.kind}): {row.start}" in lines
    assert max(map(len, lines)) <= 80


def test_nothing_is_written(tmp_path: Path) -> None:
    options: dict[str, Any] = {**config(), "workspace": {"path": str(tmp_path / "run")}}
    analyze(digits().model(), calibration=digits().batches(), config=options)
    assert not (tmp_path / "run").exists()


def test_without_data_there_is_nothing_to_look_at() -> None:
    with pytest.raises(ConfigError, match="analyze needs calibration data"):
        analyze(digits().model(), config=config())
