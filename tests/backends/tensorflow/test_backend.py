"""The TensorFlow backend from end to end: every kind of model tuned, saved, and run again by TensorFlow
alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import octune
from octune.backends import Settings, backend_for
from octune.backends.tensorflow.backend import TensorFlowBackend
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.tensorflow.probe import kernel_check, refusals
from octune.calibration import collect
from octune.errors import ConfigError, DataError, ModelError, PlanError
from octune.harm import probe
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan
from tests.backends.tensorflow import subjects
from tests.backends.tensorflow.subjects import PIPELINE, SIZE, digits, v1
from tests.machines import runnable

# What a server does: TensorFlow and nothing of Octune.
RUN_GRAPH = """
import sys, numpy as np, tensorflow as tf
definition = tf.compat.v1.GraphDef()
definition.ParseFromString(open(sys.argv[1] + "/model.pb", "rb").read())
graph = tf.Graph()
with graph.as_default():
    tf.graph_util.import_graph_def(definition, name="")
x = np.load(sys.argv[2])
np.save(sys.argv[3], tf.compat.v1.Session(graph=graph).run("logits:0", {"x:0": x}))
assert not any(name.startswith("octune") for name in sys.modules)
"""
RUN_SERVED = """
import sys, numpy as np, tensorflow as tf
function = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
(argument,) = [name for name, spec in function.structured_input_signature[1].items() if spec.shape.rank == 2]
signature = function.structured_input_signature[1]
more = {name: tf.constant(1.0) for name, spec in signature.items() if spec.shape.rank == 0}
results = function(**{argument: tf.constant(np.load(sys.argv[2])), **more})
np.save(sys.argv[3], results["logits" if "logits" in results else "output"])
assert not any(name.startswith("octune") for name in sys.modules)
"""


def fresh_process(script: str, folder: Path, tmp_path: Path) -> Any:
    np.save(tmp_path / "x.npy", digits().test[:50])
    arguments = [str(folder), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return np.load(tmp_path / "y.npy")


def logits(model: Any) -> Any:
    """What each kind of model answers, called as its users call it."""
    x = digits().test[:50]
    if isinstance(model, tf.Graph):
        with v1.Session(graph=model) as session:
            return session.run("logits:0", {"x:0": x})
    if isinstance(model, tf.types.experimental.ConcreteFunction):
        return model({"pixels": tf.constant(x)}, tf.constant(1.0), False)["logits"].numpy()
    answer = model(x)
    return np.asarray(answer["logits"] if isinstance(answer, dict) else answer)


def loaded_saved_model(tmp_path: Path) -> Any:
    return tf.saved_model.load(str(subjects.saved_model(tmp_path / "fp32")))


KINDS: dict[str, tuple[Any, Any, str]] = {
    "graph_def": (lambda path: subjects.graph_def(), tf.Graph, RUN_GRAPH),
    "graph": (lambda path: as_graph(subjects.graph_def()), tf.Graph, RUN_GRAPH),
    "session": (lambda path: subjects.session(), tf.Graph, RUN_GRAPH),
    "saved_model": (loaded_saved_model, tf.Module, RUN_SERVED),
    "keras": (lambda path: subjects.keras_model(), tf.Module, RUN_SERVED),
    "function": (
        lambda path: subjects.concrete_function(),
        tf.types.experimental.ConcreteFunction,
        RUN_SERVED,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_tuned_saved_and_run_by_tensorflow_alone(kind: str, tmp_path: Path) -> None:
    make, wanted, script = KINDS[kind]
    calibration: Any = [batch for batch, _ in digits().batches()]
    if kind == "function":
        calibration = [(batch, np.float32(1)) for batch in calibration]
    config = {**SIZE, "model": {"outputs": ["logits"]}} if kind == "session" else SIZE
    scored: list[type] = []

    def evaluate(model: Any) -> float:
        scored.append(type(model))
        return float((logits(model).argmax(-1) == digits().labels[:50]).mean())

    result = octune.tune(make(tmp_path), calibration=calibration, evaluate=evaluate, config=config)
    assert result.met, result
    assert len(set(scored)) == 1, "the baseline and the int8 models are things of the same kind"
    assert isinstance(result.model, wanted)
    assert result.plan.names("int8")
    int8 = logits(result.model)
    folder = result.save(tmp_path / "int8")
    again = octune.load(folder)
    assert isinstance(again, wanted)
    np.testing.assert_array_equal(logits(again), int8)
    if kind not in ("graph_def", "graph"):  # their files are like a session's
        np.testing.assert_array_equal(fresh_process(script, folder, tmp_path), int8)


def test_outlier_channels_do_not_cost_the_score() -> None:
    data = digits()
    definition = subjects.graph_def(*subjects.with_outliers())
    backend = backend_for(definition, Settings())
    ranges = calibrated(backend, data.batches())
    fp32 = data.graph_accuracy(backend.fp32_model())
    everything = data.graph_accuracy(backend.apply(int8_plan(backend, ranges), ranges))
    assert everything < 0.9 * fp32, "all-int8 is meant to fail here"
    result = octune.tune(definition, calibration=data.batches(), evaluate=data.graph_accuracy, config=SIZE)
    assert result.met
    assert result.plan.names("int8")
    assert data.graph_accuracy(result.model) >= 0.99 * fp32


# -- graphs that read their own data -------------------------------------------------------------------------

LPOT = """
model:
  name: digits
  framework: tensorflow
  inputs: input_file, batch_size
  outputs: IteratorGetNext:1, logits
quantization:
  calibration:
    sampling_size: 40
  model_wise:
    weight:
      granularity: per_channel
  op_wise: {
             'dense_2/MatMul': {'activation': {'dtype': ['fp32']}, 'weight': {'dtype': ['fp32']}},
             'dense_[0]/.*': {'activation': {'dtype': ['int8']}, 'weight': {'dtype': ['int8']}}
           }
tuning:
  objective: modelsize
  accuracy_criterion:
    relative: 0.01
"""


@pytest.mark.slow
def test_a_graph_with_its_own_iterator_is_tuned_by_an_lpot_file(tmp_path: Path) -> None:
    data = digits()
    train = subjects.records(tmp_path / "train.tfrecord", data.train[:64])
    dev = subjects.records(tmp_path / "dev.tfrecord", data.test)
    (tmp_path / "conf.yaml").write_text(LPOT)

    def evaluate(graph: Any) -> float:
        rows: list[Any] = []
        with v1.Session(graph=graph) as session:
            session.run(
                graph.get_operation_by_name("MakeIterator"), {"input_file:0": dev, "batch_size:0": 100}
            )
            fetched = {
                "number": graph.get_tensor_by_name("IteratorGetNext:1"),
                "logits": graph.get_tensor_by_name("logits:0"),
            }
            while True:
                try:
                    found = session.run(fetched)
                except tf.errors.OutOfRangeError:
                    break
                rows.extend(zip(found["number"], found["logits"].argmax(-1), strict=True))
        return float(np.mean([data.labels[number] == guess for number, guess in rows]))

    result = octune.tune(
        subjects.pipeline_graph(),
        calibration=[((train, 16), 0)],
        evaluate=evaluate,
        config=tmp_path / "conf.yaml",
    )
    assert result.met
    assert {name: scheme.dtype for name, scheme in result.plan.items()} == {
        "dense_0/MatMul": "int8",
        "dense_1/MatMul": "int8",
        "dense_2/MatMul": "fp32",
    }
    again = octune.load(result.save(tmp_path / "int8"))
    assert evaluate(again) == evaluate(result.model)
    assert any(function.signature.name for function in again.as_graph_def().library.function), (
        "the dataset's functions are kept"
    )


def test_a_metric_scores_the_whole_file_of_a_pipeline(tmp_path: Path) -> None:
    data = digits()
    train = subjects.records(tmp_path / "train", data.train[:64])
    dev = subjects.records(tmp_path / "dev", data.test)
    result = octune.tune(
        subjects.pipeline_graph(),
        calibration=[(train, 16)],
        evaluation=[((dev, 100), data.labels)],
        metric="accuracy",
        config={**SIZE, "model": {"outputs": ["logits"]}},
    )
    assert result.met
    assert result.baseline.score is not None
    assert result.baseline.score.n == len(data.labels)


def test_calibration_reads_no_more_of_a_file_than_it_was_told(tmp_path: Path) -> None:
    backend = backend_for(subjects.pipeline_graph(), PIPELINE)
    feed, label = backend.split((subjects.records(tmp_path / "a", digits().train[:50]), 8))
    assert label is None
    assert backend.batch_size(feed) == 50
    assert backend.batch_size(backend.resized(feed, 3)) == 3
    seen: list[tuple[int, ...]] = []

    def visit(op: str, array: Any, *, shape: tuple[int, ...], channel_axis: int = -1) -> None:
        seen.append(shape)

    backend.observe([next(backend.parts(feed))], visit)
    assert seen
    assert all(shape[0] == 8 for shape in seen)


# -- configuration -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pb", "keras", "saved_model"])
def test_models_are_named_by_path_in_a_call_and_in_a_configuration(kind: str, tmp_path: Path) -> None:
    if kind == "pb":
        path = tmp_path / "model.pb"
        path.write_bytes(subjects.graph_def().SerializeToString())
    elif kind == "keras":
        path = tmp_path / "model.keras"
        subjects.keras_model().save(path)
    else:
        path = subjects.saved_model(tmp_path / "model")
    calibration = [batch for batch, _ in digits().batches()]
    options: dict[str, Any] = {"calibration": calibration, "evaluate": lambda model: 1.0}
    assert octune.tune(path, **options, config=SIZE).met
    assert octune.tune(**options, config={**SIZE, "model": {"path": str(path)}}).met


def test_op_names_that_match_nothing_are_an_error_with_near_names() -> None:
    with pytest.raises(ConfigError, match=r"'dense_1/MatMull'.*Nearest names: .*dense_1/MatMul"):
        octune.tune(
            subjects.graph_def(),
            calibration=digits().batches(),
            evaluate=lambda graph: 1.0,
            config={**SIZE, "quantization": {"ops": {"dense_1/MatMull": {"weight": {"dtype": "fp32"}}}}},
        )


def test_tensor_names_that_match_nothing_are_an_error_with_near_names() -> None:
    config = {**SIZE, "model": {"framework": "tensorflow", "outputs": ["logit"]}}
    with pytest.raises(ModelError, match=r"model.outputs names 'logit'.*Nearest names: logits"):
        octune.tune(
            subjects.graph_def(), calibration=digits().batches(), evaluate=lambda graph: 1.0, config=config
        )


# -- looking -------------------------------------------------------------------------------------------------


def masked_model() -> Any:
    """Tokens, a mask that it does not even read, and two products: one on (batch, tokens, width), one on
    flattened rows.
    """
    random = np.random.default_rng(0)
    table, first, second = (
        random.standard_normal(shape).astype(np.float32) for shape in ((10, 8), (8, 8), (8, 4))
    )
    table[0] = 1000.0  # what padding looks like
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int32, [None, 5], name="input_ids")
        v1.placeholder(tf.int32, [None, 5], name="input_mask")
        x = tf.reshape(tf.gather(tf.constant(table), ids), [-1, 8])
        tf.identity(
            tf.matmul(
                tf.tanh(tf.matmul(x, tf.constant(first), name="first")), tf.constant(second), name="second"
            ),
            name="out",
        )
    return graph


def test_padding_is_not_observed() -> None:
    backend = backend_for(masked_model(), Settings(("input_ids", "input_mask"), ("out",)))
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 0]])
    inputs, _ = backend.split({"input_ids": ids, "input_mask": (ids > 0).astype(int)})
    assert collect(backend, [inputs], 2)["first"].high < 100
    inputs, _ = backend.split({"input_ids": ids, "input_mask": np.ones_like(ids)})
    assert collect(backend, [inputs], 2)["first"].high == 1000


def test_an_error_of_the_visitor_is_raised_as_it_is() -> None:
    backend = backend_for(subjects.graph_def(), Settings())
    inputs = backend.split(digits().batches()[0])[0]

    def visit(op: str, array: Any, *, shape: tuple[int, ...], channel_axis: int = -1) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        backend.observe([inputs], visit)


def test_data_that_the_graph_cannot_run_on_is_an_error() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, None], name="x")
        tf.matmul(x, tf.ones([4, 4]), name="y")
    backend = backend_for(graph, Settings())
    inputs, _ = backend.split(np.ones((2, 3), np.float32))
    with pytest.raises(DataError, match="cannot be run on the calibration data"):
        collect(backend, [inputs], 2)


@pytest.mark.parametrize("scheme", runnable([Scheme.int8(), Scheme.int8(range_method="mse"), Scheme.bf16()]))
def test_harm_from_gradients_agrees_with_harm_from_quantizing(scheme: Scheme) -> None:
    backend = backend_for(subjects.graph_def(*subjects.with_outliers(8.0)), Settings())
    ranges = calibrated(backend, digits().batches())
    inputs = [backend.split(batch)[0] for batch in digits().batches(8, 8)]
    candidates = {op.name: [scheme] for op in backend.ops()}
    quick, slow = backend.harm(candidates, ranges, inputs), probe(backend, candidates, ranges, inputs)
    assert set(quick) == set(slow)
    for key, value in slow.items():
        assert 0.4 * value < quick[key] < 2.5 * value, (key, quick[key], value)


def test_a_graph_without_gradients_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = as_graph(subjects.graph_def())
    with graph.as_default():
        # Rint has no gradient.
        tf.identity(tf.math.rint(graph.get_tensor_by_name("logits:0") * 8), name="rounded")
    backend = backend_for(graph, Settings(outputs=("rounded",)))
    ranges = calibrated(backend, digits().batches())
    inputs = [backend.split(batch)[0] for batch in digits().batches()]
    harm = backend.harm({"dense_0/MatMul": [Scheme.int8()]}, ranges, inputs)
    assert harm["dense_0/MatMul", Scheme.int8()] > 0


# -- what else is asked of it --------------------------------------------------------------------------------


def test_the_example_of_a_callable_is_seen_in_the_evaluation() -> None:
    backend = backend_for(subjects.keras_model(), Settings())
    model = backend.fp32_model()
    with backend.capture(model) as seen:
        model(digits().test[:7])
        model(digits().test[:9])
    assert len(seen) == 1
    assert backend.batch_size(seen[0]) == 7
    with backend.capture(backend_for(subjects.graph_def(), Settings()).fp32_model()) as nothing:
        pass
    assert nothing == []


def test_fingerprints_tell_weights_apart_and_nothing_else() -> None:
    first, second = (backend_for(subjects.keras_model(), Settings()).fingerprint() for _ in range(2))
    assert first == second, "the names that Keras counts up are not part of the weights"
    weights = [weight.copy() for weight in digits().weights]
    plain = backend_for(subjects.graph_def(), Settings()).fingerprint()
    weights[1][0, 0] += 1e-3
    assert backend_for(subjects.graph_def(weights), Settings()).fingerprint() != plain


def test_threads_that_come_too_late_are_told() -> None:
    tf.constant(1.0)
    wanted = (tf.config.threading.get_intra_op_parallelism_threads() or 0) + 3
    backend = backend_for(subjects.graph_def(), Settings(threads=wanted))
    assert any("before TensorFlow is first used" in note for note in backend.notes)


def test_sessions_are_not_hoarded() -> None:
    backend = TensorFlowBackend(subjects.graph_def(), Settings())
    ranges = calibrated(backend, digits().batches())
    inputs = backend.split(digits().batches()[0])[0]
    for _ in range(6):
        backend.run(backend.apply(Plan(), ranges), inputs)
    assert len(backend._sessions._kept) <= 3
    backend.close()
    assert not backend._sessions._kept


# -- ops that are refused ------------------------------------------------------------------------------------


def test_ops_that_disagree_with_fp32_lose_their_int8_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_check, "SLACK", 0.0)
    monkeypatch.setattr(kernel_check, "FLOOR", 1e-9)  # no kernel is that exact
    backend = backend_for(subjects.graph_def(), Settings())
    assert all(op.can("int8") for op in backend.ops())
    ranges = calibrated(backend, digits().batches())
    for op in backend.ops():
        assert not op.can("int8")
        assert "disagrees with fp32" in op.note
        assert "relative error" in op.note
    assert any(note.startswith("dense_0/MatMul: int8 disagrees") for note in backend.notes)
    with pytest.raises(PlanError, match="disagrees with fp32"):
        backend.apply(Plan({"dense_0/MatMul": Scheme.int8()}), ranges)
    result = octune.tune(
        subjects.graph_def(), calibration=digits().batches(), evaluate=digits().graph_accuracy, config=SIZE
    )
    assert not result.plan.names("int8")


def test_an_op_whose_int8_form_does_not_run_is_found_among_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(rewriter: Any, plan: Plan, ranges: Any, values: Any, inputs: Any, threads: Any) -> Any:
        if "dense_1/MatMul" in plan and plan["dense_1/MatMul"].mode == "static":
            raise tf.errors.UnimplementedError(None, None, "no such kernel")
        return kernel_check.check(rewriter, plan, ranges, values, inputs, threads)

    monkeypatch.setattr(refusals, "check", failing)
    backend = backend_for(subjects.graph_def(), Settings())
    calibrated(backend, digits().batches())
    modes = {op.name: {scheme.mode for scheme in op.schemes if not scheme.is_float} for op in backend.ops()}
    assert modes == {
        "dense_0/MatMul": {"static", "dynamic"},
        "dense_1/MatMul": {"dynamic"},
        "dense_2/MatMul": {"static", "dynamic"},
    }
    assert "no such kernel" in backend.ops()[1].note


def test_ops_that_need_the_sizes_of_the_batch_are_checked_with_it() -> None:
    """The reshape behind the product asks the batch for its size, as BERT's segment embeddings do."""
    random = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 5, 8], name="x")
        rows = tf.matmul(
            tf.reshape(x, [-1, 8]),
            tf.constant(random.standard_normal((8, 6)).astype(np.float32)),
            name="product",
        )
        tf.add(tf.reshape(rows, tf.stack([tf.shape(x)[0], 5, 6])), x[:, :, :6], name="out")
    backend = backend_for(graph, Settings())
    batch = random.standard_normal((4, 5, 8)).astype(np.float32)
    ranges = calibrated(backend, [batch])
    assert all(op.can("int8") and not op.note for op in backend.ops())
    inputs, _ = backend.split(batch[:3])
    int8, fp32 = (
        backend.run(model, inputs)["out"]
        for model in (backend.apply(int8_plan(backend, ranges), ranges), backend.fp32_model())
    )
    assert 0 < np.abs(int8 - fp32).mean() < 0.05 * np.abs(fp32).mean()
