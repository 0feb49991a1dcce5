"""Every kind of model goes in; the same kind, which computes the same, comes out of its frozen graph."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from octune import opening
from octune.backends.tensorflow.model import nested
from octune.backends.tensorflow.model.handover import Handover, Taken, is_model, take
from octune.backends.tensorflow.model.metagraph import MetaGraph
from octune.backends.tensorflow.model.sources import open_model
from octune.backends.terms import Settings
from octune.errors import ModelError
from tests.backends.tensorflow import subjects
from tests.backends.tensorflow.subjects import digits, v1


def rebuilt(model: Any, settings: Settings | None = None) -> tuple[Taken, Any]:
    taken = take(model, settings or Settings())
    return taken, taken.handover.build(taken.frozen.graph_def)


def logits_of(graph: Any) -> Any:
    with v1.Session(graph=graph) as session:
        return session.run("logits:0", {"x:0": digits().test})


@pytest.fixture(scope="module")
def expected() -> Any:
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(subjects.graph_def(), name="")
    return logits_of(graph)


def close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-4)


# -- graphs --------------------------------------------------------------------------------------------------


def test_a_graph_def_becomes_a_graph(expected: Any) -> None:
    taken, graph = rebuilt(subjects.graph_def())
    assert isinstance(graph, tf.Graph)
    assert dict(taken.frozen.inputs) == {"x": "x:0"}
    assert dict(taken.frozen.outputs) == {"logits": "logits:0"}
    close(logits_of(graph), expected)


def test_a_graph_is_taken_as_it_is_and_not_changed(expected: Any) -> None:
    given = tf.Graph()
    with given.as_default():
        tf.graph_util.import_graph_def(subjects.graph_def(), name="")
    before = given.as_graph_def().SerializeToString(deterministic=True)
    _, graph = rebuilt(given, Settings(("x",), ("logits:0",)))
    assert graph is not given
    close(logits_of(graph), expected)
    assert given.as_graph_def().SerializeToString(deterministic=True) == before


def test_a_session_is_frozen_with_the_values_it_has(expected: Any) -> None:
    with subjects.session() as session:
        taken, graph = rebuilt(session, Settings(outputs=("logits",)))
        close(logits_of(graph), expected)
        # What training left behind is cut off, its placeholder too.
        assert dict(taken.frozen.inputs) == {"x": "x:0"}
        assert {node.op for node in taken.frozen.graph_def.node} <= {
            "Placeholder",
            "Const",
            "Identity",
            "MatMul",
            "BiasAdd",
            "Relu",
        }
        kernel = session.graph.get_tensor_by_name("dense_1/kernel:0")
        with session.graph.as_default():
            session.run(v1.assign(kernel, tf.zeros_like(kernel)))
        close(logits_of(graph), expected)


def test_variables_without_values_are_an_error_that_says_what_to_give() -> None:
    with subjects.session() as session:
        graph = session.graph
        with pytest.raises(ModelError, match=r"not frozen.*dense_0/kernel.*Session"):
            take(graph, Settings(outputs=("logits",)))
        with v1.Session(graph=graph) as fresh, pytest.raises(ModelError, match="no values yet"):
            take(fresh, Settings(outputs=("logits",)))


def test_functions_in_a_graph_are_inlined(expected: Any) -> None:
    data = digits()
    layer = tf.function(lambda x, w, b: tf.matmul(x, w, name="product") + b)
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        for index, (weight, bias) in enumerate(zip(data.weights, data.biases, strict=True)):
            x = layer(x, tf.constant(weight), tf.constant(bias))
            x = tf.nn.relu(x) if index < 2 else x
        tf.identity(x, name="logits")
    taken, made = rebuilt(graph)
    assert sum(node.op == "MatMul" for node in taken.frozen.graph_def.node) == 3
    close(logits_of(made), expected)


def test_a_name_that_is_not_in_the_graph_is_an_error_with_near_names() -> None:
    with pytest.raises(ModelError, match=r"model.outputs names 'dense_2/BiasAd'.*dense_2/BiasAdd"):
        take(subjects.graph_def(), Settings(outputs=("dense_2/BiasAd",)))
    with pytest.raises(ModelError, match=r"model.inputs names 'x:1'.*Nearest names: x"):
        take(subjects.graph_def(), Settings(inputs=("x:1",)))
    with pytest.raises(ModelError, match=r"dense_2/MatMul"):
        take(subjects.graph_def(), Settings(outputs=("MatMul",)))


def test_a_placeholder_that_is_needed_but_not_named_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"need the placeholders batch_size.*Add them"):
        take(subjects.pipeline_graph(), Settings(inputs=("input_file",), outputs=("logits",)))


def test_a_tensor_inside_the_graph_may_be_the_input() -> None:
    taken, _ = rebuilt(
        subjects.pipeline_graph(), Settings(inputs=("IteratorGetNext:0",), outputs=("logits",))
    )
    (slot,) = taken.slots()
    assert (slot.tensor, slot.dtype, slot.shape) == ("IteratorGetNext:0", tf.float32, (None, 64))


# -- SavedModel ----------------------------------------------------------------------------------------------


def test_a_saved_model_becomes_a_callable_with_its_signature(expected: Any, tmp_path: Path) -> None:
    loaded = tf.saved_model.load(str(subjects.saved_model(tmp_path / "model")))
    _, model = rebuilt(loaded)
    wanted = loaded.signatures["serving_default"](pixels=tf.constant(digits().test))
    for got in (
        model(pixels=digits().test),
        model(digits().test),
        model.signatures["serving_default"](pixels=tf.constant(digits().test)),
    ):
        assert set(got) == {"logits", "probabilities"}
        close(got["logits"], expected)
        close(got["probabilities"], wanted["probabilities"])
    tf.saved_model.save(model, str(tmp_path / "again"), signatures=model.signatures)
    again = tf.saved_model.load(str(tmp_path / "again")).signatures["serving_default"](
        pixels=tf.constant(digits().test)
    )
    close(again["logits"], expected)


def test_a_saved_model_without_a_signature_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(ModelError, match="has no signature"):
        take(tf.saved_model.load(str(tmp_path)), Settings())


def test_names_that_a_signature_does_not_have_are_refused(tmp_path: Path) -> None:
    loaded = tf.saved_model.load(str(subjects.saved_model(tmp_path)))
    with pytest.raises(ModelError, match=r"model.inputs names 'pixel'.*Nearest names: pixels"):
        take(loaded, Settings(inputs=("pixel",)))


def test_a_saved_model_of_keras_2_is_read_by_its_graph(expected: Any, tmp_path: Path) -> None:
    folder = subjects.trained_with_keras_2(tmp_path)
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(folder))
    taken, model = rebuilt(open_model(str(folder)))
    assert taken.handover.signature == "serving_default"
    got = model(pixels=digits().test)
    assert set(got) == {"logits", "probabilities"}
    close(got["logits"], expected)
    close(got["probabilities"], tf.nn.softmax(expected))
    with closing(opening.open_model(folder)) as opened:
        close(opened.run(opened.split(digits().test)[0])["logits"], expected)


def test_any_tensor_of_a_graph_may_be_in_a_signature(expected: Any, tmp_path: Path) -> None:
    given = MetaGraph.read(subjects.first_generation(tmp_path / "model"))
    taken, model = rebuilt(given)
    assert list(taken.handover.inputs) == ["pixels", "scale", "unused"]
    got = model(pixels=digits().test, scale=np.float32(2), unused=np.zeros(1, np.int32))
    close(got["logits"], 2 * expected)


def test_a_saved_model_that_cannot_be_read_at_all_is_refused_with_both_reasons(tmp_path: Path) -> None:
    folder = subjects.trained_with_keras_2(tmp_path)
    for file in (folder / "variables").iterdir():
        file.unlink()
    with pytest.raises(ModelError, match=r"cannot be loaded by TensorFlow.*nor can its graph alone"):
        open_model(str(folder))


# -- Keras ---------------------------------------------------------------------------------------------------


def test_a_keras_model_becomes_a_callable_like_it(expected: Any) -> None:
    given = subjects.keras_model()
    _, model = rebuilt(given)
    for got in (
        model(digits().test),
        model({"pixels": digits().test}),
        model(pixels=digits().test),
        model(digits().test, training=False),
    ):
        assert isinstance(got, tf.Tensor)
        close(got, expected)
    close(model.predict(digits().test, batch_size=100, verbose=0), given.predict(digits().test, verbose=0))


a, b = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("takes", "gives"),
    [
        (lambda x, y: [x, y], lambda z: z),
        (lambda x, y: {"left": x, "my-right": y}, lambda z: [z, z + 1]),
        (lambda x, y: (x, y), lambda z: {"z": z, "a": (z + 1, z + 2)}),
    ],
    ids=["list", "dict", "tuple"],
)
def test_keras_models_keep_the_nesting_of_inputs_and_outputs(takes: Any, gives: Any) -> None:
    x, y = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    given = keras.Model(takes(x, y), gives(keras.layers.Dense(3)(keras.layers.Concatenate()([x, y]))))
    taken, model = rebuilt(given)
    wanted, got = given(takes(a, b)), model(takes(a, b))
    tf.nest.assert_same_structure(wanted, got)
    for one, other in zip(tf.nest.flatten(wanted), tf.nest.flatten(got), strict=True):
        close(one, other)
    assert (
        Handover.from_json(json.loads(json.dumps(taken.handover.to_json(), sort_keys=True))) == taken.handover
    )


def test_a_subclassed_keras_model_is_taken_once_it_was_built() -> None:
    class Doubled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return 2 * self.dense(x)

    model = Doubled()
    with pytest.raises(ModelError, match="get_concrete_function"):
        take(model, Settings())
    wanted = model(a)
    _, made = rebuilt(model)
    close(made(a), wanted)
    close(made(a[:2]), wanted[:2])


# -- functions -----------------------------------------------------------------------------------------------


def test_a_concrete_function_becomes_one_with_the_same_arguments(expected: Any) -> None:
    given = subjects.concrete_function()
    taken, function = rebuilt(given)
    assert isinstance(function, tf.types.experimental.ConcreteFunction)
    pixels, one = tf.constant(digits().test), tf.constant(1.0)
    for got in (
        function({"pixels": pixels}, one, False),
        function(batch={"pixels": pixels}, scale=one, training=False),
    ):
        tf.nest.assert_same_structure(got, given({"pixels": pixels}, one, False))
        close(got["logits"], expected)
        assert float(got["more"][1]) == 1.0
    assert (
        Handover.from_json(json.loads(json.dumps(taken.handover.to_json(), sort_keys=True))) == taken.handover
    )


def test_a_function_with_an_input_signature_is_concrete_enough() -> None:
    double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([None], tf.float32)])
    _, function = rebuilt(double)
    close(function(tf.constant([1.0, 2.0])), [2.0, 4.0])
    with pytest.raises(ModelError, match="get_concrete_function"):
        take(tf.function(lambda x: 2 * x), Settings())


# -- recognising and opening ---------------------------------------------------------------------------------


def test_what_is_a_model_and_what_is_not(tmp_path: Path) -> None:
    assert all(
        map(
            is_model, (subjects.graph_def(), tf.Graph(), subjects.keras_model(), subjects.concrete_function())
        )
    )
    assert is_model(tf.saved_model.load(str(subjects.saved_model(tmp_path))))
    assert not any(
        map(
            is_model,
            (None, 3, "model.pb", tmp_path, np.zeros(3), keras.layers.Dense(3), object(), tf.Module()),
        )
    )


def test_models_are_opened_by_where_they_lie(expected: Any, tmp_path: Path) -> None:
    (tmp_path / "frozen.pb").write_bytes(subjects.graph_def().SerializeToString())
    _, graph = rebuilt(open_model(str(tmp_path / "frozen.pb")))
    close(logits_of(graph), expected)
    subjects.keras_model().save(tmp_path / "digits.keras")
    _, model = rebuilt(open_model(str(tmp_path / "digits.keras")))
    close(model(digits().test), expected)
    subjects.saved_model(tmp_path / "saved")
    for source in (tmp_path / "saved", tmp_path / "saved" / "saved_model.pb"):
        _, served = rebuilt(open_model(str(source)))
        close(served(digits().test)["logits"], expected)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pb", None, "There is no file"),
        ("text.pb", b"this is no graph", "is not a GraphDef"),
        ("empty.pb", b"", "without a node"),
        ("model.onnx", b"x", "is not a model that TensorFlow can read"),
        ("broken.keras", b"x", "cannot be read as an archive"),
        ("folder", "folder", "has no saved_model.pb"),
    ],
)
def test_what_cannot_be_opened_is_an_error_that_says_why(
    name: str, content: bytes | str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(ModelError, match=message):
        open_model(str(path))


def test_nestings_survive_as_plain_data() -> None:
    names = {"a": ["x", ("y", None)], "b": {"c": "z"}, "d": ()}
    assert nested.from_json(json.loads(json.dumps(nested.to_json(names)))) == names
    assert nested.pack(names, {"x": 1, "y": 2, "z": 3}) == {"a": [1, (2, None)], "b": {"c": 3}, "d": ()}
    assert list(nested.leaves(names)) == ["x", "y", "z"]
