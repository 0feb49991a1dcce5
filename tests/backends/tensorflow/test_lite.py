"""The LiteRT form of a winner: the kind of model that came in, with the numbers of the file that it runs."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import octune
from octune.backends.tensorflow.backend import TensorFlowBackend
from octune.backends.tensorflow.model import storage
from octune.backends.tensorflow.model.lite import Lite, lite_of
from octune.backends.terms import Settings
from octune.calibration import Ranges
from octune.cost.latency import Speedup, Timed
from octune.engine.stopwatch import Stopwatch
from octune.errors import UnsupportedError
from octune.export import export
from octune.opening import open_model
from octune.plan import Plan, Scheme

from .graphs import error
from .subjects import (
    PIPELINE,
    concrete_function,
    digits,
    graph_def,
    keras_model,
    pipeline_graph,
    saved_model,
)

FORMS = {
    "performance": {"iterations": 1, "warmup": 0, "forms": ["native", "litert"]},
    "quantization": {"weight": {"dtype": "int8"}},  # ops this small need not be faster in it
}
DYNAMIC = Scheme.int8("dynamic")


def backend_of(model: Any, *forms: str) -> TensorFlowBackend:
    return TensorFlowBackend(model, Settings(threads=2, forms=forms or ("litert",)))


def all_int8(backend: TensorFlowBackend) -> Plan:
    return Plan({op.name: DYNAMIC for op in backend.ops() if DYNAMIC in op.schemes})


def in_litert(backend: TensorFlowBackend, plan: Plan | None = None) -> Any:
    (finalist,) = backend.finalists(all_int8(backend) if plan is None else plan, Ranges(), None)
    assert finalist.form == "litert"
    return finalist.model


def batch(backend: TensorFlowBackend, values: Any) -> Any:
    return backend.split(values)[0]


def as_saved_model(folder: Path) -> Any:
    return tf.saved_model.load(str(saved_model(folder)))


@pytest.mark.parametrize("kind", ["graph", "saved_model", "keras", "function"])
def test_every_kind_of_model_stays_of_its_kind_and_is_saved(kind: str, tmp_path: Path) -> None:
    images: Any = digits().test[:20]
    if kind == "function":
        images = (images, np.float32(1))
    model = {
        "graph": graph_def,
        "saved_model": lambda: as_saved_model(tmp_path / "fp32"),
        "keras": keras_model,
        "function": concrete_function,
    }[kind]()
    backend = backend_of(model)
    assert len(all_int8(backend)) == 3
    made, inputs = in_litert(backend), batch(backend, images)
    assert type(made) is type(backend.fp32_model())
    wanted, got = backend.run(backend.fp32_model(), inputs), backend.run(made, inputs)
    assert set(got) == set(wanted)
    far = {name: error(value, wanted[name]) for name, value in got.items()}
    assert 1e-4 < max(far.values()) < 0.03, far  # int8 throughout, and right
    # The file computes what the model does, and is all that is saved.
    folder = tmp_path / "saved"
    folder.mkdir()
    told = backend.writer()(made, folder)
    assert [path.name for path in folder.iterdir()] == ["model.tflite"]
    assert backend.size(made) == (folder / "model.tflite").stat().st_size
    again = storage.load(folder, json.loads(json.dumps(told)))
    assert type(again) is type(made)
    for name, value in backend.run(again, inputs).items():
        np.testing.assert_array_equal(value, got[name])
    backend.close()


def test_the_plan_says_what_is_int8() -> None:
    backend = backend_of(graph_def())
    names = [op.name for op in backend.ops()]
    kept = in_litert(backend, Plan({names[0]: DYNAMIC, names[1]: Scheme.fp32(), names[2]: DYNAMIC}))
    float_file = in_litert(backend, Plan({name: Scheme.fp32() for name in names}))
    sizes = [backend.size(model) for model in (in_litert(backend), kept, float_file)]
    assert sizes == sorted(sizes)
    assert sizes[1] - sizes[0] > 2 * 96 * 64  # the second weight has its four bytes
    inputs = batch(backend, digits().test[:20])
    assert (
        error(backend.run(float_file, inputs)["logits"], backend.run(backend.fp32_model(), inputs)["logits"])
        < 1e-5
    )


def test_a_graph_is_run_by_a_session_of_the_user_and_goes_with_its_file() -> None:
    backend = backend_of(graph_def())
    made = in_litert(backend)
    assert digits().graph_accuracy(made) > 0.9
    one = backend.run(made, batch(backend, digits().test[:1]))  # any batch
    assert one["logits"].shape == (1, 10)
    backend.close()  # a session holds its graph
    kept = lite_of(made)
    assert kept is not None
    file: weakref.ref[Lite] = weakref.ref(kept)
    del made, kept
    gc.collect()
    assert file() is None


def test_only_what_is_asked_for_is_made() -> None:
    backend = backend_of(graph_def(), "native")
    assert list(backend.finalists(all_int8(backend), Ranges(), None)) == []
    with pytest.raises(UnsupportedError, match=r"performance\.forms has openvino.*native, litert"):
        octune.tune(
            graph_def(),
            calibration=digits().batches(),
            evaluate=digits().graph_accuracy,
            config={"performance": {"forms": ["native", "openvino"]}},
        )


def test_a_graph_that_reads_its_own_file_has_no_such_form() -> None:
    backend = TensorFlowBackend(
        pipeline_graph(), Settings(PIPELINE.inputs, PIPELINE.outputs, forms=("litert",))
    )
    assert list(backend.finalists(all_int8(backend), Ranges(), None)) == []
    assert any("reads its own data, which LiteRT cannot" in note for note in backend.notes)


def test_tuning_times_and_scores_it_and_what_wins_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which form is faster is for the machine to say; here it is said that this one is."""

    def speed(watch: Stopwatch, model: Any, *rest: Any) -> Timed:
        watch._backend.run(model, watch.example)
        ratio = 2.0 if lite_of(model) is None else 3.0
        return Timed(Speedup(ratio, ratio, ratio), 1.0 / ratio)

    monkeypatch.setattr(Stopwatch, "speed", speed)
    data = digits()
    result = octune.tune(
        graph_def(),
        calibration=data.batches(),
        evaluate=data.graph_accuracy,
        criterion="5%",
        config=FORMS,
    )
    assert [trial.form for trial in result.trials][-1] == "litert"
    assert result.trials[-1].passed
    assert result.best.form == "litert"
    assert result.plan.names("int8")
    folder = result.save(tmp_path / "model")
    assert data.graph_accuracy(octune.load(folder)) == result.best.score.value
    opened = open_model(folder)
    assert "int8" in str(opened.coverage(data.test))
    written = export(folder, "litert", tmp_path / "lite")
    assert (written / "model.tflite").read_bytes() == (folder / "model.tflite").read_bytes()
    with pytest.raises(UnsupportedError, match="TensorFlow Serving reads savedmodel"):
        export(folder, "tfserving", tmp_path / "served")
