"""A result is rebuilt from its workspace alone, at whatever point the run was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import octune
from octune.cli import app
from octune.criterion import Absolute, Criterion, Relative
from octune.errors import ArtifactError, WorkspaceError
from octune.plan import Op, Scheme
from octune.replay import UNFINISHED
from tests.digits import config, digits


def tuned(workspace: Path, **arguments: Any) -> octune.Result:
    data = digits()
    options = {**config(), "workspace": {"path": str(workspace)}}
    batches = [
        (data.test[start : start + 50], data.labels[start : start + 50])
        for start in range(0, len(data.test), 50)
    ]
    return octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluation=batches,
        metric="accuracy",
        config=options,
        **arguments,
    )


def test_a_finished_run_is_told_as_it_was(tmp_path: Path) -> None:
    result = tuned(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = octune.replay(tmp_path)
    assert again.to_dict() == json.loads(result.to_json())
    assert str(again) == str(result)
    assert (again.ops, again.kept, again.certified) == (result.ops, result.kept, None)
    assert again.model is None
    assert again.coverage is not None
    assert again.coverage.int8 == 1.0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    shown = CliRunner().invoke(app, ["replay", str(tmp_path), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == json.loads(result.to_json())
    assert "criterion met" in CliRunner().invoke(app, ["replay", str(tmp_path)]).stdout
    with pytest.raises(ArtifactError, match="no model to save"):
        again.save(tmp_path / "model")


def test_the_verdict_on_data_held_out_is_there_too(tmp_path: Path) -> None:
    result = tuned(tmp_path, certify="holdout")
    assert result.certified is not None
    assert octune.replay(tmp_path).certified == result.certified


def test_a_run_that_was_cut_anywhere_says_what_it_has(tmp_path: Path) -> None:
    result = tuned(tmp_path / "whole")
    lines = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [json.loads(line)["event"] for line in lines]
    folder = tmp_path / "cut"
    folder.mkdir()
    for kept in range(len(lines)):
        # and a part of the next line
        (folder / "journal.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:7])
        if "baseline" not in events[:kept]:
            with pytest.raises(WorkspaceError, match=r"has not scored the fp32 model yet|has version None"):
                octune.replay(folder)
            continue
        found = octune.replay(folder)
        assert found.stopped_because == UNFINISHED
        assert found.baseline.score == result.baseline.score
        assert [trial.plan for trial in found.trials] == [trial.plan for trial in result.trials][
            : events[:kept].count("trial")
        ]
        assert found.met == any(trial.passed for trial in found.trials)
        str(found)


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"is not the workspace of a run: it has no journal\.jsonl"):
        octune.replay(tmp_path)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"event": "start", "version": 1}\n')
    with pytest.raises(WorkspaceError, match="has version 1, this Octune reads"):
        octune.replay(tmp_path)


@pytest.mark.parametrize(
    "criterion", [Relative(0.01), Absolute(2.0, higher_is_better=False), Relative(0.02, confidence=0.95)]
)
def test_criteria_are_plain_data(criterion: Criterion) -> None:
    assert Criterion.from_json(json.loads(json.dumps(criterion.to_json()))) == criterion


def test_ops_are_plain_data() -> None:
    op = Op("a", "linear", (Scheme.int8(repairs=("bias",)), Scheme.fp32()), 12, "Linear(3, 4)", "a note")
    assert Op.from_json(json.loads(json.dumps(op.to_json()))) == op
    assert Op.from_json({**op.to_json(), "aliases": ["b"]}) == op, "as earlier versions wrote it"
