"""Steps between a model's output and its metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octune.errors import ConfigError, EvaluationError
from octune.evaluation import get_metric
from octune.evaluation.postprocess import LabelShift, postprocessed

LOGITS = [np.array([0.1, 0.9]), np.array([0.8, 0.2]), np.array([0.3, 0.7])]


class Flip:
    """A user's own step."""

    def __init__(self, *, times: int = 1) -> None:
        self.times = times

    def __call__(self, sample: Any) -> Any:
        predictions, labels = sample
        return [row[::-1] if self.times % 2 else row for row in predictions], labels


def broken(sample: Any) -> Any:
    return sample[0]


def make_broken() -> Any:
    return broken


def test_labels_are_shifted() -> None:
    for options in (1, {"label_shift": 1}):
        metric = postprocessed(get_metric("accuracy"), {"LabelShift": options})
        score = metric.score(metric.predictions({"logits": np.stack(LOGITS)}), [2, 1, 1])
        assert score.value == pytest.approx(2 / 3)
        assert metric.items == "own"  # so hopeless plans can still be stopped early
    assert LabelShift(2)(("x", np.array([2, 3]))) == ("x", [0, 1])


def test_steps_of_ones_own_run_in_order() -> None:
    metric = postprocessed(get_metric("accuracy"), {"LabelShift": 1, f"{__name__}:Flip": {"times": 3}})
    assert metric.score(LOGITS, [1, 2, 1]).value == 1
    assert metric.items is None  # the step may do anything to rows
    plain = get_metric("accuracy")
    assert postprocessed(plain, {}) is plain


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"LabelShfit": 1}, r"unknown step 'LabelShfit'. Expected LabelShift"),
        ({"LabelShift": "one"}, r"whole number. Got 'one'"),
        ({"LabelShift": {"by": 1}}, r"LabelShift of postprocess cannot be made of {'by': 1}"),
        ({"SquadV1": {"label_file": "x"}}, r"task: squad"),
        ({"no.such.module:Step": {}}, r"cannot be imported"),
    ],
)
def test_what_cannot_be_a_step(steps: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        postprocessed(get_metric("accuracy"), steps)


def test_a_step_must_return_both() -> None:
    metric = postprocessed(get_metric("accuracy"), {f"{__name__}:make_broken": None})
    with pytest.raises(
        EvaluationError, match=r"The step broken of postprocess must return \(predictions, labels\)"
    ):
        metric.score(LOGITS, [0, 1, 1])
