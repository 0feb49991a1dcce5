"""The label-free metric: what is compared, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.data import as_batches
from octune.errors import ConfigError, EvaluationError
from octune.evaluation.agreement import Agreement, AgreementEvaluator, kind_of
from octune.evaluation.feedback import fed_back


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("logits", (4, 2), "top1"),
        ("logits", (4, 128, 64), "top1"),
        ("start_logits", (4, 384), "top1"),
        ("last_hidden_state", (4, 7, 384), "cosine"),
        ("sentence_embedding", (4, 10), "cosine"),
        ("output", (4, 1000), "top1"),
        ("output", (4, 768), "cosine"),
        ("0", (4, 10), "top1"),
        ("output", (4, 1), "value"),
        ("output", (4,), "value"),
    ],
)
def test_the_kind_is_told_by_name_then_by_shape(name: str, shape: tuple[int, ...], kind: str) -> None:
    assert kind_of(name, np.zeros(shape, np.float32)) == kind


@given(st.integers(0, 2**32 - 1), st.sampled_from(["top1", "cosine", "value"]))
def test_a_model_agrees_with_itself(seed: int, kind: str) -> None:
    metric = Agreement(kind)
    rows = metric.predictions({"output": np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)})
    assert metric.score(rows, rows).value == pytest.approx(1.0)


def test_flips_are_counted_item_by_item() -> None:
    metric = Agreement()
    fp32 = metric.predictions({"logits": np.asarray([[2.0, 1.0], [0.0, 1.0], [5.0, 1.0], [0.0, 9.0]])})
    int8 = metric.predictions({"logits": np.asarray([[2.0, 1.0], [1.0, 0.9], [5.0, 1.0], [0.0, 8.0]])})
    score = metric.score(int8, fp32)
    assert score.items is not None
    assert score.hits is not None
    assert score.items.tolist() == [1, 0, 1, 1] == score.hits.tolist()


def test_the_worst_output_counts() -> None:
    metric = Agreement()
    fp32 = metric.predictions({"start_logits": np.eye(3), "end_logits": np.eye(3)})
    int8 = metric.predictions({"start_logits": np.eye(3), "end_logits": np.eye(3)[::-1]})
    assert metric.score(int8, fp32).value == pytest.approx(1 / 3)


def test_vectors_are_compared_by_direction_and_tokens_by_their_mean() -> None:
    metric = Agreement("cosine")
    fp32 = metric.predictions({"output": np.asarray([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 3.0], [0.0, 1.0]]])})
    int8 = metric.predictions({"output": np.asarray([[[2.0, 0.0], [4.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])})
    items = metric.score(int8, fp32).items
    assert items is not None
    assert items.tolist() == pytest.approx([1.0, 0.0])


def test_single_numbers_are_compared_by_the_spread_of_fp32() -> None:
    metric = Agreement()
    fp32, int8 = (metric.predictions({"output": np.asarray(values)}) for values in ([0.0, 2.0], [0.0, 2.5]))
    items = metric.score(int8, fp32).items
    assert items is not None
    assert items.tolist() == pytest.approx([1.0, 0.5])


def test_losses_and_token_ids_are_not_compared() -> None:
    metric = Agreement()
    rows = metric.predictions(
        {"loss": np.asarray(3.0), "ids": np.zeros((2, 3), np.int64), "logits": np.eye(2)}
    )
    assert [len(row) for row in rows] == [1, 1]
    with pytest.raises(EvaluationError, match="no outputs to compare"):
        metric.predictions({"ids": np.zeros((2, 3), np.int64)})


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="top1, cosine, value"):
        Agreement("flips")
    metric = Agreement("cosine")
    rows = metric.predictions({"output": np.asarray([[np.nan, 1.0]])})
    with pytest.raises(EvaluationError, match="NaN"):
        metric.score(rows, rows)


@pytest.mark.parametrize(
    ("outputs", "inputs", "left"),
    [
        ({"output": (1, 1), "stateN": (2, 1, 128)}, {"input": (1, 512), "state": (2, 1, 128)}, ["stateN"]),
        ({"prob": (4, 1), "hn": (2, 4, 8), "cn": (2, 4, 8)}, {"x": (4, 9), "h": (2, 4, 8), "c": (2, 4, 8)},
         ["hn", "cn"]),
        ({"y": (4, 9), "h_out": (1, 4, 8)}, {"x": (4, 9), "h_in": (1, 4, 8)}, ["h_out"]),
        ({"logits": (2, 7, 90), "present.0.key": (2, 4, 8, 16)}, {"input_ids": (2, 7)}, ["present.0.key"]),
        ({"logits": (2, 9), "new_cache_last_channel": (3, 2, 8)}, {"cache_last_channel": (3, 2, 8)},
         ["new_cache_last_channel"]),
        # nothing that comes in: an encoder's answer
        ({"last_hidden_state": (2, 7, 8), "pooler_output": (2, 8)}, {"input_ids": (2, 7)}, []),
        # another shape: a state machine's next state, say, is its answer
        ({"state": (4, 3), "y": (4, 2)}, {"state": (4, 5)}, []),
        # an autoencoder gives back what it takes, and is no state
        ({"image_out": (4, 8, 8), "latent": (4, 3)}, {"image": (4, 8, 8)}, []),
        ({"state_out": (4, 8)}, {"state": (4, 8)}, []),
    ],
)  # fmt: skip
def test_state_that_is_fed_back_is_no_answer(
    outputs: dict[str, tuple[int, ...]], inputs: dict[str, tuple[int, ...]], left: list[str]
) -> None:
    assert fed_back(outputs, inputs) == left


def test_a_state_with_more_rows_than_the_batch_does_not_hide_the_answer() -> None:
    metric = Agreement()
    outputs = {"output": np.ones((1, 1), np.float32), "stateN": np.ones((2, 1, 128), np.float32)}
    inputs = {"input": np.ones((1, 512), np.float32), "state": np.ones((2, 1, 128), np.float32)}
    kinds = metric.kinds(outputs, inputs)
    assert kinds == {"output": "value", "stateN": "left out"}
    assert [len(row) for row in metric.predictions(outputs, kinds)] == [1]


# -- the evaluator -------------------------------------------------------------------------------------------


class Backend:
    """A model is a number that is added to its inputs; fp32 adds nothing."""

    def split(self, batch: Any) -> tuple[Any, Any]:
        return batch, None

    def fp32_model(self) -> float:
        return 0.0

    def run(self, model: float, inputs: np.ndarray) -> dict[str, np.ndarray]:
        return {"output": inputs + model}


def evaluator(*batches: np.ndarray) -> AgreementEvaluator:
    return AgreementEvaluator(Backend(), as_batches(list(batches), role="evaluation"), Agreement())  # type: ignore[arg-type]


def test_the_first_batch_of_the_baseline_decides_how_all_are_compared() -> None:
    # The second batch is as wide as an embedding, the first is not: both are classes.
    wide, narrow = np.eye(3, 64), np.eye(3, 10)
    scored = evaluator(narrow, wide)
    score, pairing = scored.baseline(0.0)
    assert dict(pairing.kinds) == {"output": "top1"}
    assert score.hits is not None
    assert scored.notes(pairing) == ("what is compared: output: same class as fp32",)
    assert scored(5.0, pairing).value == 1.0  # the cosine would be less


def test_how_outputs_are_compared_is_passed_on_not_remembered() -> None:
    wide, narrow = np.eye(3, 64), np.eye(3, 10)
    _, pairing = evaluator(narrow).baseline(0.0)
    scored = evaluator(wide)
    for known, kind in ((pairing, "top1"), (None, "cosine"), (pairing, "top1")):
        score, own = scored.baseline(5.0, known)
        assert own.kinds == {"output": kind}
        assert (score.value == 1.0) == (kind == "top1")
