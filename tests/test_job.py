"""What is asked for becomes a job, or is refused before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import octune
import octune.job as job_module
from octune.criterion import Absolute, Criterion, Relative
from octune.errors import ConfigError
from octune.job import Job
from octune.request import Request
from tests.digits import digits


def job(**arguments: Any) -> Job:
    data = digits()
    given = {"calibration": data.batches(), "evaluation": data.labelled(), "metric": "accuracy", **arguments}
    made = Job.of(Request(data.model(), **given))
    made.__exit__(None, None, None)
    return made


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, Relative(0.01)),
        (0.02, Relative(0.02)),
        (0, Relative(0)),
        (-0.01, Relative(-0.01)),
        ("2%", Relative(0.02)),
        (" 0.5 % ", Relative(0.005)),
        ("0.02", Relative(0.02)),
        ({"relative": 0.02}, Relative(0.02)),
        ({"relative": "2%", "confidence": 0.9}, Relative(0.02, confidence=0.9)),
        ({"absolute": 2}, Absolute(2)),
        ({"confidence": "95%"}, Relative(0.01, confidence=0.95)),
        (Relative(0.02), Relative(0.02)),
        (Absolute(0.5), Absolute(0.5)),
    ],
)
def test_a_criterion_in_any_form(asked: Any, expected: Criterion) -> None:
    assert job(criterion=asked).study.criterion == expected


def test_what_the_argument_does_not_say_stays_as_the_configuration_has_it() -> None:
    config = {"criterion": {"absolute": 0.5, "confidence": 0.9}}
    assert job(criterion="2%", config=config).study.criterion == Relative(0.02, confidence=0.9)
    assert job(criterion={"confidence": 0.8}, config=config).study.criterion == Absolute(0.5, confidence=0.8)
    assert job(criterion=Relative(0.02), config=config).study.criterion == Relative(0.02)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (1, r"arguments: criterion\.relative must be a share .* below 1 .* Got 1\. Did you mean 1%\?"),
        ("200%", "must be a share"),
        (float("nan"), "must be a number or a percentage"),
        ("one percent", "must be a number or a percentage such as 0.01 or '1%'. Got 'one percent'"),
        ({"relativ": 0.01}, "Did you mean 'relative'?"),
        ({"relative": 0.01, "absolute": 2}, "has both 'relative' and 'absolute'; keep one"),
        (True, "criterion must be a number such as 0.01"),
        ([0.01], "criterion must be a number such as 0.01"),
    ],
)
def test_a_criterion_that_makes_no_sense_is_refused(asked: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?") if said.endswith("'?") else said):
        job(criterion=asked)


def test_the_direction_of_the_metric_and_of_the_criterion_must_agree() -> None:
    targets = [(inputs, inputs[:, :10]) for inputs in digits().batches()]
    assert job(metric="mse", evaluation=targets, criterion=0.02).study.criterion == Relative(
        0.02, higher_is_better=False
    )
    with pytest.raises(ConfigError, match=r"'mse' is better the lower it is. Give criterion={'absolute': 2}"):
        job(metric="mse", evaluation=targets, criterion=Absolute(2))


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        ([str(Path(octune.__file__).with_name("__main__.py")), "tune", "a b.yaml"], "octune tune 'a b.yaml'"),
        (["/usr/bin/octune", "resume", "run"], "octune resume run"),
        (["train.py", "--fast"], "python train.py --fast"),
        (["-c"], ""),
    ],
)
def test_the_command_is_what_was_typed(argv: list[str], typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert job_module._command() == typed
