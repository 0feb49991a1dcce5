"""Functions of the user's own: one number, one number per item, and only the items that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from octune.criterion import Relative
from octune.errors import EvaluationError
from octune.evaluation.function import FunctionEvaluator, takes_subset
from octune.evaluation.holdout import held_items, search_items
from octune.evaluation.pairing import Pairing
from octune.referee import Standard
from octune.score import Score

N = 800
GOOD = (np.arange(N) % 20 != 0).astype(float)
BAD = GOOD * (np.arange(N) % 3 != 0)


class Scored:
    """Scores a "model", which is an array of right and wrong, and notes what it was asked for."""

    def __init__(self, form: Callable[[np.ndarray], Any] = lambda items: items) -> None:
        self.asked: list[Sequence[int] | None] = []
        self.form = form

    def __call__(self, model: np.ndarray, subset: Sequence[int] | None = None) -> Any:
        self.asked.append(subset)
        return self.form(model if subset is None else model[list(subset)])


def test_the_parameter_is_found_by_its_name() -> None:
    assert takes_subset(Scored())
    assert takes_subset(lambda model, *, subset: 0)
    assert takes_subset(partial(lambda scale, model, subset=None: 0, 1))
    assert not takes_subset(lambda model: 0)
    assert not takes_subset(lambda model, **options: 0)
    assert not takes_subset(print)


@pytest.mark.parametrize(
    "form", [lambda items: items, list, lambda items: Score.from_items(items, hits=items, limits=(0, 1))]
)
def test_a_hopeless_model_is_asked_for_a_few_items_only(form: Callable[[np.ndarray], Any]) -> None:
    function = Scored(form)
    evaluator = FunctionEvaluator(function)
    baseline = evaluator(GOOD)
    score = evaluator(BAD, Pairing(), Standard(baseline, Relative(0.01)))
    assert function.asked[0] is None
    assert score.partial
    assert score.total == N
    assert score.n is not None
    assert score.n < N / 3
    assert score.index is not None
    assert score.items is not None
    assert score.items.tolist() == BAD[score.index].tolist()
    asked = [number for part in function.asked[1:] for number in part or ()]
    assert sorted(asked) == score.index.tolist()
    assert all(isinstance(number, int) for number in asked)
    verdict = Relative(0.01).judge(baseline, score)
    assert verdict.outcome == "fail"
    assert verdict.lost is not None


def test_what_passes_is_scored_on_every_item_once() -> None:
    function = Scored()
    evaluator = FunctionEvaluator(function)
    baseline = evaluator(GOOD)
    score = evaluator(GOOD, Pairing(), Standard(baseline, Relative(0.01)))
    assert not score.partial
    assert score == baseline
    assert score.items is not None
    assert score.items.tolist() == GOOD.tolist()
    asked = [number for part in function.asked[1:] for number in part or ()]
    assert sorted(asked) == list(range(N))
    assert len(function.asked) < 10


def test_the_same_items_are_asked_for_each_time() -> None:
    function = Scored()
    evaluator = FunctionEvaluator(function, seed=3)
    standard = Standard(evaluator(GOOD), Relative(0.01))
    first, again = evaluator(BAD, Pairing(), standard), evaluator(BAD, Pairing(), standard)
    assert first == again
    assert function.asked[1] == function.asked[1 + len(function.asked) // 2]
    other = FunctionEvaluator(Scored(), seed=4)
    assert other(BAD, Pairing(), standard).index.tolist() != first.index.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "form",
    [
        lambda items: float(items.mean()),  # no items
        lambda items: items * 7 - 3,  # items without known limits
        lambda items: Score.from_items(items, value=0.3),  # pseudo-values
    ],
)
def test_what_cannot_be_judged_by_a_part_is_run_in_full(form: Callable[[np.ndarray], Any]) -> None:
    function = Scored(form)
    evaluator = FunctionEvaluator(function)
    standard = Standard(evaluator(GOOD), Relative(0.01))
    assert not evaluator(BAD, Pairing(), standard).partial
    assert function.asked == [None, None]


def test_few_items_are_asked_for_at_once() -> None:
    function = Scored()
    evaluator = FunctionEvaluator(function)
    evaluator(BAD[:100], Pairing(), Standard(evaluator(GOOD[:100]), Relative(0.01)))
    assert function.asked == [None, None]


def test_a_function_without_subset_is_run_in_full() -> None:
    calls = []

    def evaluate(model: np.ndarray) -> np.ndarray:
        calls.append(1)
        return model

    evaluator = FunctionEvaluator(evaluate)
    assert not evaluator(BAD, Pairing(), Standard(evaluator(GOOD), Relative(0.01))).partial
    assert len(calls) == 2


def test_a_subset_that_must_be_given_is_none_for_all() -> None:
    def evaluate(model: np.ndarray, subset: Sequence[int] | None) -> np.ndarray:
        return model if subset is None else model[list(subset)]

    evaluator = FunctionEvaluator(evaluate)
    baseline = evaluator(GOOD)
    assert baseline.n == N
    assert evaluator(BAD, Pairing(), Standard(baseline, Relative(0.01))).partial


@pytest.mark.parametrize(
    ("answer", "got"),
    [(lambda items: items[:-1], "numbers"), (lambda items: float(items.mean()), "one number")],
)
def test_an_answer_that_does_not_fit_the_question_is_refused(
    answer: Callable[[np.ndarray], Any], got: str
) -> None:
    def evaluate(model: np.ndarray, subset: Sequence[int] | None = None) -> Any:
        return model if subset is None else answer(model[list(subset)])

    evaluator = FunctionEvaluator(evaluate)
    standard = Standard(evaluator(GOOD), Relative(0.01))
    with pytest.raises(EvaluationError, match=rf"asked for \d+ items, and returned .*{got}.*in that order"):
        evaluator(BAD, Pairing(), standard)


def test_items_that_leave_their_limits_are_run_to_the_end() -> None:
    evaluator = FunctionEvaluator(Scored())
    standard = Standard(evaluator(GOOD), Relative(0.01))
    wild = BAD.copy()
    wild[::2] = -5
    assert not evaluator(wild, Pairing(), standard).partial


def test_nan_among_items_is_refused() -> None:
    with pytest.raises(EvaluationError, match="3 of 800 items that are NaN"):
        FunctionEvaluator(lambda model: Score(0.5, items=np.where(np.arange(N) < 3, np.nan, 1.0)))(GOOD)


# -- a part held out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("subset", [True, False])
def test_a_share_of_the_items(subset: bool) -> None:
    function = Scored()
    plain = function if subset else (lambda model: function(model))
    search = FunctionEvaluator(plain, share=partial(search_items, seed=1))
    held = FunctionEvaluator(plain, share=partial(held_items, seed=1))
    baseline, pairing = search.baseline(GOOD)
    assert pairing == Pairing(items=N)
    assert baseline.n == 560
    score, held_pairing = held.baseline(GOOD, pairing)
    assert (score.n, held_pairing) == (240, pairing)
    assert function.asked[1] == (held_items(N, 1).tolist() if subset else None)
    score = search(BAD, pairing, Standard(baseline, Relative(0.01)))
    assert score.partial is subset
    if subset:
        asked = {number for part in function.asked[2:] for number in part or ()}
        assert asked < set(search_items(N, 1).tolist())
        assert Relative(0.01).judge(baseline, score).lost is not None


def test_a_share_needs_items() -> None:
    with pytest.raises(EvaluationError, match="needs one score per item"):
        FunctionEvaluator(lambda model: 0.5, share=partial(search_items, seed=1))(GOOD)
