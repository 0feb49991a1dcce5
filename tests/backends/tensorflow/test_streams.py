"""A graph in streams computes what it computed, and is split where that is possible and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import octune
from octune.backends.tensorflow.backend import TensorFlowBackend
from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.graph.sessions import Sessions
from octune.backends.tensorflow.graph.worker import Worker, _search_path
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.int8.streams import streams_of
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.terms import Settings
from octune.calibration import Ranges
from octune.errors import ModelError, UnsupportedError
from octune.plan import Plan, Scheme

from .graphs import (
    Array,
    bert,
    bert_feed,
    calibrated,
    dense,
    error,
    everything,
    frozen,
    normal,
    op_types,
    run,
    v1,
    weight,
)

STATIC = Scheme.int8("static")
ROWS = {"x:0": normal(5, 32)}


class Looked(NamedTuple):
    """A graph that was looked at and calibrated, with all of it in int8; any number of tests can split it."""

    graph: FrozenGraph
    rewriter: Rewriter
    ranges: Ranges
    plan: Plan

    @classmethod
    def at(cls, graph: FrozenGraph, feed: Mapping[str, Array]) -> Looked:
        rewriter = Rewriter(graph)
        return cls(graph, rewriter, calibrated(rewriter, [feed]), everything(rewriter, STATIC))


@cache
def looked_at_bert(sequence: int | None = 16) -> Looked:
    return Looked.at(bert(sequence=sequence), bert_feed())


def split(looked: Looked, feed: Mapping[str, Array], count: int = 2) -> tuple[Any, Any, float]:
    """The int8 graph, the same in streams (None if nothing is split), and how far apart their outputs are."""
    graph, rewriter, ranges, plan = looked
    plain, made = rewriter.rewrite(plan, ranges), rewriter.in_streams(plan, ranges, count)
    if made is None:
        return plain, None, 0.0
    names = list(graph.outputs.values())
    pairs = zip(run(made, names, feed), run(plain, names, feed), strict=True)
    return plain, made, max(error(a, b) for a, b in pairs)


def matmuls(graph_def: Any) -> int:
    return op_types(graph_def).count("_QuantizedMatMul")


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("sequence", [16, None], ids=["fixed", "any-length"])
def test_bert_in_streams_computes_the_same(sequence: int | None, count: int) -> None:
    plain, made, far = split(looked_at_bert(sequence), bert_feed(), count)
    # Sums in another order move some values over the edge of a rounding step, so they are close, not equal.
    assert far < 0.02
    # Both layers with Q, K, V and all the rest are split; the pooler feeds the classifier, so they are a pair
    # like a feed-forward block.
    assert matmuls(made) >= 12 * count
    assert op_types(made).count("Softmax") == 2 * count
    _, rewriter, ranges, plan = looked_at_bert(sequence)
    assert streams_of(as_graph(made)) == streams_of(as_graph(plain)) == 1  # any session will do
    own = rewriter.in_streams(plan, ranges, count, own_threads=True)
    assert streams_of(as_graph(own)) == count


def test_the_first_number_of_streams_that_divides_anything_is_taken() -> None:
    _, rewriter, ranges, plan = looked_at_bert()  # 4 heads, 64 and 256 channels
    plain = matmuls(rewriter.rewrite(plan, ranges))
    made = [matmuls(rewriter.in_streams(plan, ranges, *counts)) for counts in ((3, 2), (2,), (4, 2), (4,))]
    assert plain < made[0] == made[1] < made[2] == made[3]
    assert rewriter.in_streams(plan, ranges, 3) is None
    assert rewriter.in_streams(plan, ranges) is None  # one thread


def test_streams_serve_any_batch() -> None:
    graph, rewriter, ranges, plan = looked_at_bert(None)
    plain, made = rewriter.rewrite(plan, ranges), rewriter.in_streams(plan, ranges, 2)
    for feed in (bert_feed(1, 7), bert_feed(5, 33, seed=1)):
        names = list(graph.outputs.values())
        assert (
            max(error(a, b) for a, b in zip(run(made, names, feed), run(plain, names, feed), strict=True))
            < 0.02
        )


def test_heads_that_cannot_be_shared_out_stay_together() -> None:
    _, made, far = split(
        looked_at_bert(), bert_feed(), 3
    )  # 4 heads, 64 and 256 channels: nothing divides by 3
    assert made is None
    other = Looked.at(bert(width=48, heads=4, inner=96), bert_feed())  # channels do, heads do not
    _, made, far = split(other, bert_feed(), 3)
    assert made is not None
    assert far < 0.02
    assert op_types(made).count("Softmax") == 2


def feed_forward(behind: Callable[[tf.Tensor], Mapping[str, tf.Tensor]]) -> FrozenGraph:
    def build() -> Mapping[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 32], "x")
        return behind(tf.nn.relu(dense(x, 64, "up")))

    return frozen(build)


def layered(hidden: tf.Tensor) -> tf.Tensor:
    return dense(hidden, 32, "down", seed=1)


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(lambda h: {"y": layered(h), "hidden": h}, id="fetched"),
        pytest.param(lambda h: {"y": layered(h), "mean": tf.reduce_mean(h)}, id="summed over elsewhere"),
        pytest.param(lambda h: {"y": layered(tf.concat([h[:, :32], h[:, 32:]], 1))}, id="cut up"),
        pytest.param(lambda h: {"y": tf.nn.relu(layered(h))}, id="activation behind the sum"),
        pytest.param(lambda h: {"y": tf.nn.softmax(h)}, id="softmax over the parts"),
        pytest.param(
            lambda h: {"y": layered(h * tf.reduce_mean(h, 0))}, id="a factor per channel that is computed"
        ),
    ],
)
def test_what_needs_the_whole_is_left_whole(behind: Callable[[tf.Tensor], Mapping[str, tf.Tensor]]) -> None:
    assert split(Looked.at(feed_forward(behind), ROWS), ROWS)[1] is None


def test_a_feed_forward_block_with_its_residual_is_split() -> None:
    def build() -> Mapping[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 32], "x")
        return {"y": layered(tf.nn.relu(dense(x, 64, "up"))) + x}

    plain, made, far = split(Looked.at(frozen(build), ROWS), ROWS)
    assert (matmuls(plain), matmuls(made)) == (2, 4)
    assert far < 1e-5


def test_a_constant_per_channel_is_shared_out() -> None:
    factors = np.linspace(1, 2, 64, dtype=np.float32)
    _, made, far = split(Looked.at(feed_forward(lambda h: {"y": layered(h * weight(factors))}), ROWS), ROWS)
    assert matmuls(made) == 4
    assert far < 1e-5


def test_keras_attention_is_split_by_heads() -> None:
    import keras

    tokens = keras.Input((8, 32))
    mixed = keras.layers.MultiHeadAttention(4, 8)(tokens, tokens)
    backend = TensorFlowBackend(
        keras.Model(tokens, keras.layers.LayerNormalization()(tokens + mixed)), Settings()
    )
    rewriter = backend._rewriter
    feed = {next(iter(backend._frozen.inputs.values())): normal(3, 8, 32)}
    ranges, plan = calibrated(rewriter, [feed]), everything(rewriter, STATIC)
    made = rewriter.in_streams(plan, ranges, 2)
    assert made is not None
    assert matmuls(made) == 8
    names = list(backend._frozen.outputs.values())
    assert error(run(made, names, feed)[0], run(rewriter.rewrite(plan, ranges), names, feed)[0]) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "own"), [({}, 1), ({"streams": 2}, 2)], ids=["unasked", "asked"])
def test_the_backend_offers_streams_and_runs_them(asked: dict[str, int], own: int) -> None:
    graph = bert()
    feed, output = bert_feed(batch=3), graph.outputs["logits"]
    backend = TensorFlowBackend(
        as_graph(graph.graph_def), Settings(outputs=(output,), threads=2, extra=asked)
    )
    inputs = {name.removesuffix(":0"): value for name, value in feed.items()}
    ranges = calibrated(backend._rewriter, [feed])
    plan = Plan({op.name: STATIC for op in backend.ops() if STATIC in op.schemes})
    assert list(backend.finalists(Plan({op.name: Scheme.fp32() for op in backend.ops()}), ranges, None)) == []
    (finalist,) = backend.finalists(plan, ranges, None)
    assert streams_of(finalist.model) == own
    batch = backend.split(inputs)[0]
    plain = backend.run(backend.apply(plan, ranges), batch)
    assert [
        error(value, plain[name]) < 0.02 for name, value in backend.run(finalist.model, batch).items()
    ] == [True]
    backend.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_keras_models_have_streams_unless_they_have_one_thread_or_are_not_to(threads: int) -> None:
    import keras

    x = keras.Input((32,))
    model = keras.Model(x, keras.layers.Dense(32)(keras.layers.Dense(64, "relu")(x)))
    rows = normal(5, 32)
    for asked in ({}, {"streams": 1}):
        backend = TensorFlowBackend(model, Settings(threads=threads, extra=asked))
        assert set(asked) <= backend.extras
        ranges = calibrated(backend._rewriter, [{next(iter(backend._frozen.inputs.values())): rows}])
        plan = Plan({op.name: STATIC for op in backend.ops() if STATIC in op.schemes})
        forms = list(backend.finalists(plan, ranges, None))
        assert [form.form for form in forms] == ([] if asked or threads == 1 else ["streams"])
        for form in forms:
            assert error(np.asarray(form.model(rows)), np.asarray(backend.apply(plan, ranges)(rows))) < 1e-5
        backend.close()


@pytest.mark.slow
def test_tuning_with_streams_ends_with_a_graph_that_meets_the_criterion() -> None:
    graph = bert()
    feed = bert_feed(batch=8)
    inputs = {name.removesuffix(":0"): value for name, value in feed.items()}
    wanted = run(graph.graph_def, graph.outputs["logits"], feed).argmax(1)

    def evaluate(model: Any) -> float:
        with v1.Session(graph=model) as session:
            return float(np.mean(session.run(graph.outputs["logits"], feed).argmax(1) == wanted))

    config = {
        "model": {"framework": "tensorflow", "outputs": [graph.outputs["logits"]]},
        "performance": {"streams": 2, "threads": 2},
        # ops this small need not be faster in int8, and only int8 is split
        "tuning": {"objective": "modelsize"},
    }
    result = octune.tune(as_graph(graph.graph_def), calibration=[inputs], evaluate=evaluate, config=config)
    assert result.met, str(result)
    # Which form is faster is for the machine to say. Either way the form was made, and what it wants was
    # said.
    assert any("inter_op_parallelism_threads=2" in note for note in result.notes), result.notes
    assert {trial.form for trial in result.trials} <= {"eager", "streams"}


def test_streams_are_refused_where_there_are_none() -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(UnsupportedError, match=r"performance\.streams is 2.*Leave it out"):
        octune.tune(
            model,
            calibration=[normal(3, 4)],
            evaluate=lambda model: 1.0,
            config={"performance": {"streams": 2}},
        )


def test_a_graph_in_streams_still_has_a_session_of_its_own() -> None:
    """A graph that reads its own file is started by a session, in whatever form it is."""
    graph, rewriter, ranges, plan = looked_at_bert()
    made = as_graph(rewriter.in_streams(plan, ranges, 2))
    sessions = Sessions(2)
    answer = sessions.run(made, {"y": graph.outputs["logits"]}, bert_feed())["y"]
    assert error(sessions.session(made).run(graph.outputs["logits"], bert_feed()), answer) < 1e-4
    sessions.close()


@pytest.mark.slow
def test_a_worker_hands_on_what_goes_wrong_and_goes_on() -> None:
    graph = bert()
    worker = Worker(as_graph(graph.graph_def), tf.compat.v1.ConfigProto())
    try:
        with pytest.raises(ModelError, match="nothing"):
            worker.run(["nothing:0"], {})
        assert worker.run([graph.outputs["logits"]], bert_feed())[0].shape == (2, 2)
    finally:
        worker.close()


def test_a_worker_finds_this_octune_and_the_standard_library() -> None:
    """Also where Octune is not installed (-S: no site-packages), and without its modules on the top level."""
    ask = (
        "import importlib.util, statistics\n"
        "print(importlib.util.find_spec('octune').origin, statistics.__file__)"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", ask],
        env={**os.environ, "PYTHONPATH": _search_path()},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert Path(found[0]) == Path(octune.__file__)
    assert Path(found[1]).parent == Path(os.__file__).parent
