"""Graphs that read their own file: what starts them, what they give, and how their padding is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from octune.backends.batches import Fitting, Slot
from octune.backends.tensorflow.graph.sessions import Sessions
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.tensorflow.model.handover import take
from octune.backends.tensorflow.model.pipeline import Feed, Pipeline
from octune.backends.terms import Settings
from octune.errors import DataError
from tests.backends.tensorflow import subjects
from tests.backends.tensorflow.subjects import PIPELINE, digits, v1


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    found = Pipeline.of(take(subjects.pipeline_graph(), PIPELINE).frozen)
    assert found is not None
    return found


def splitter(settings: Settings = PIPELINE) -> Fitting:
    return Fitting(take(subjects.pipeline_graph(), settings).slots(), strict=True)


def feed(path: Path, images: int = 20, size: int = 8) -> Feed:
    return Feed(splitter()((subjects.records(path, digits().test[:images]), size))[0].kwargs)


def test_a_graph_without_an_iterator_has_no_pipeline() -> None:
    assert Pipeline.of(take(subjects.graph_def(), Settings()).frozen) is None
    direct = Settings(inputs=("IteratorGetNext:0",), outputs=("logits",))
    assert Pipeline.of(take(subjects.pipeline_graph(), direct).frozen) is None


def test_inputs_and_initialiser_are_found_without_being_named() -> None:
    frozen = take(subjects.pipeline_graph(), Settings()).frozen
    assert dict(frozen.inputs) == {"input_file": "input_file:0", "batch_size": "batch_size:0"}
    assert dict(frozen.outputs) == {"logits": "logits:0"}
    assert frozen.targets == ("MakeIterator",)


def test_the_iterator_gives_its_batches_one_by_one(pipeline: Pipeline, tmp_path: Path) -> None:
    batches = list(pipeline.batches(feed(tmp_path / "a.tfrecord")))
    assert [batch.batch_size for batch in batches] == [8, 8, 4]
    np.testing.assert_array_equal(
        np.concatenate([batch.kwargs["IteratorGetNext:0"] for batch in batches]), digits().test[:20]
    )
    np.testing.assert_array_equal(batches[2].kwargs["IteratorGetNext:1"], np.arange(16, 20))


def test_a_batch_that_was_read_can_be_fed_again(pipeline: Pipeline, tmp_path: Path) -> None:
    started = feed(tmp_path / "a.tfrecord")
    graph, sessions = as_graph(pipeline.frozen.graph_def), Sessions()
    fetches = dict(pipeline.frozen.outputs)
    whole = pipeline.run(graph, sessions, fetches, started)
    parts = [sessions.run(graph, fetches, batch.kwargs) for batch in pipeline.batches(started)]
    assert whole["logits"].shape == (20, 10)
    for name in fetches:
        np.testing.assert_allclose(
            np.concatenate([part[name] for part in parts]), whole[name], rtol=1e-5, atol=1e-5
        )
    again = pipeline.run(graph, sessions, fetches, started)
    np.testing.assert_array_equal(again["IteratorGetNext:1"], np.arange(20))
    sessions.close()


def test_an_iterator_that_starts_by_itself_can_be_run_twice(tmp_path: Path) -> None:
    graph = tf.Graph()
    with graph.as_default():
        dataset = tf.data.Dataset.from_tensor_slices(digits().test[:10]).batch(4)
        subjects.perceptron(
            v1.data.make_one_shot_iterator(dataset).get_next(), digits().weights, digits().biases
        )
    frozen = take(graph, Settings()).frozen
    found = Pipeline.of(frozen)
    assert found is not None
    assert not frozen.inputs
    for _ in range(2):
        assert [batch.batch_size for batch in found.batches(Feed({}))] == [4, 4, 2]
        assert found.run(graph, Sessions(), dict(frozen.outputs), Feed({}))["logits"].shape == (10, 10)


def test_placeholders_that_the_model_reads_itself_are_fed_with_every_batch(tmp_path: Path) -> None:
    graph = subjects.pipeline_graph()
    with graph.as_default():
        scale = v1.placeholder(tf.float32, [], name="scale")
        tf.multiply(graph.get_tensor_by_name("logits:0"), scale, name="scaled")
    frozen = take(graph, Settings(outputs=("scaled",))).frozen
    found = Pipeline.of(frozen)
    assert found is not None
    assert found.direct == ("scale:0",)
    values = {
        "input_file:0": subjects.records(tmp_path / "a", digits().test[:6]),
        "batch_size:0": np.int64(4),
        "scale:0": np.float32(2),
    }
    batches = list(found.batches(Feed(values)))
    assert all(batch.kwargs["scale:0"] == 2 for batch in batches)
    assert found.run(graph, Sessions(), dict(frozen.outputs), Feed(values))["scaled"].shape == (6, 10)


def test_files_that_cannot_be_read_are_an_error(pipeline: Pipeline, tmp_path: Path) -> None:
    missing = Feed(splitter()((str(tmp_path / "missing"), 8))[0].kwargs)
    with pytest.raises(DataError, match="missing"):
        list(pipeline.batches(missing))
    (tmp_path / "text").write_text("this is no TFRecord file, and long enough to have a header")
    with pytest.raises(DataError, match="cannot read its data"):
        list(pipeline.batches(Feed(splitter()((str(tmp_path / "text"), 8))[0].kwargs)))
    with pytest.raises(DataError, match="gave no batch"):
        pipeline.run(
            as_graph(pipeline.frozen.graph_def),
            Sessions(),
            {"logits": "logits:0"},
            feed(tmp_path / "empty", images=0),
        )


# -- what starts a pipeline ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        ("file", 8),
        ["file", 8],
        (("file", 8), None),
        (("file", 8), 0),
        [["file"], [8]],
        [[["file"], [8]], [0]],
        ((np.array(["file"]), np.array([8])), np.array([0])),
        (tf.constant("file"), tf.constant(8)),
        {"input_file": "file", "batch_size": 8},
        {"input_file:0": "file", "batch_size:0": 8},
        ({"batch_size": np.int32(8), "input_file": b"file"}, 0),
    ],
    ids=repr,
)
def test_a_file_and_a_batch_size_in_all_the_forms_that_data_loaders_make(batch: Any) -> None:
    values = splitter()(batch)[0].kwargs
    assert values["input_file:0"].item() in ("file", b"file")
    assert values["batch_size:0"] == 8
    assert values["batch_size:0"].dtype == np.int64


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"input_file": "f", "batch_sise": 8}, "'batch_sise' is none of them .nearest: batch_size"),
        ({"input_file": "f", "batch_size": 8, "shuffle": 1}, "'shuffle' is none of them"),
        ({"input_file": "f"}, "batch_size is missing"),
        ((8, "file"), "cannot be run on a batch of .int, str"),
        (("a", "b", "c"), r"Expected input_file \(string\[\]\), batch_size"),
        ((), "empty tuple"),
        (("file", 0.5), "Expected input_file"),
    ],
)
def test_feeds_that_the_graph_has_no_placeholder_for_are_an_error(batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        splitter()(batch)


# -- batches in general --------------------------------------------------------------------------------------

TOKENS = (
    Slot("ids", "ids:0", np.dtype("int32"), (None, None)),
    Slot("mask", "mask:0", np.dtype("int32"), (None, None)),
)
ids, ones, labels = np.arange(12).reshape(3, 4), np.ones((3, 4)).astype(int), np.array([0, 1, 0])


@pytest.mark.parametrize(
    ("batch", "label"),
    [
        ((ids, ones), None),
        (((ids, ones), labels), labels),
        ([[ids, ones], labels], labels),
        ((ids, ones, labels), labels),
        ({"ids": ids, "mask": ones}, None),
        ({"ids": ids, "mask": ones, "labels": labels}, labels),
        (({"ids": tf.constant(ids), "mask": ones.tolist()}, labels), labels),
    ],
    ids=["whole", "pair", "lists", "label last", "dict", "dict with labels", "tensor and list"],
)
def test_inputs_and_labels_are_told_apart(batch: Any, label: Any) -> None:
    inputs, found = Fitting(TOKENS, strict=True)(batch)
    values = inputs.kwargs
    np.testing.assert_array_equal(values["ids:0"], ids)
    np.testing.assert_array_equal(values["mask:0"], ones)
    assert all(array.dtype == np.int32 for array in values.values())
    assert found is label


def test_a_single_input_may_be_an_array_or_a_nested_list() -> None:
    single = Fitting([Slot("x", "x:0", np.dtype("float32"), (None, 4))], strict=True)
    for batch, label in (
        (ids, None),
        (ids.tolist(), None),
        ((ids, labels), labels),
        ([ids], None),
        ((ids.astype(float), None), None),
    ):
        inputs, found = single(batch)
        values = inputs.kwargs
        np.testing.assert_array_equal(values["x:0"], ids)
        assert values["x:0"].dtype == np.float32
        assert found is label
    with pytest.raises(DataError, match=r"ndarray int64\[3, 3\].*Expected x \(float32\[None, 4\]\)"):
        single(ids[:, :3])


# -- padding -------------------------------------------------------------------------------------------------


def test_the_mask_of_a_pipeline_is_known_by_its_looks(tmp_path: Path) -> None:
    tokens = np.array([[5, 6, 7, 0], [1, 1, 1, 1]])
    mask, segments = np.array([[1, 1, 1, 0], [1, 1, 1, 1]]), np.array([[0, 0, 1, 0], [0, 1, 1, 1]])

    def found(*columns: Any) -> Any:
        graph = tf.Graph()
        with graph.as_default():
            iterator = v1.data.make_initializable_iterator(
                tf.data.Dataset.from_tensor_slices(columns).batch(2)
            )
            tf.add_n([tf.cast(tensor, tf.float32) for tensor in iterator.get_next()], name="sum")
        pipeline = Pipeline.of(take(graph, Settings()).frozen)
        assert pipeline is not None
        return next(pipeline.batches(Feed({}))).mask

    np.testing.assert_array_equal(found(tokens, segments, mask), mask.astype(bool))
    assert found(tokens, segments) is None
    assert found(mask, mask) is None  # in doubt, none
