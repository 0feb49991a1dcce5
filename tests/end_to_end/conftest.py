"""Fixtures of the tests that run a whole job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import octune
from octune.cli import main
from octune.evaluation.evaluator import MetricEvaluator
from tests.digits import Digits, config, digits


@pytest.fixture(scope="module")
def data() -> Iterator[Digits]:
    """The digits and a network that reads them, in one thread: it is too small for more."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield digits()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tuned(data: Digits) -> octune.Result:
    """One ordinary run that many tests look at."""
    return octune.tune(data.model(), calibration=data.batches(), evaluate=data.accuracy, config=config())


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches that models were scored on, in that order. A batch that is only read, so
    that the data is known again, is not among them.
    """
    numbers: list[int] = []
    answers = MetricEvaluator._answers

    def noted(evaluator: MetricEvaluator, model: Any, number: int, *rest: Any) -> Any:
        numbers.append(number)
        return answers(evaluator, model, number, *rest)

    monkeypatch.setattr(MetricEvaluator, "_answers", noted)
    return numbers


@pytest.fixture
def octune_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, where frameworks are loaded already: exit code, output, errors."""

    def call(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["octune", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return call
