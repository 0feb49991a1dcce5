"""TensorFlow and Keras models of strangers: what would run code or touch files is tried, and refused."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import octune
from octune.backends.tensorflow.model.sources import open_model
from octune.errors import ArtifactError, ModelError
from octune.export import export
from octune.opening import open_model as open_any
from tests.forged import forged

X = np.linspace(-1, 1, 4 * 16, dtype=np.float32).reshape(4, 16)
W = np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8)


def graph(before: Callable[[Any], Any] = lambda x: x) -> Any:
    made = tf.Graph()
    with made.as_default():
        x = before(tf.compat.v1.placeholder(tf.float32, (None, 16), name="x"))
        tf.identity(tf.matmul(x, tf.constant(W)), name="y")
    return made


def module(path: Path, before: Callable[[Any], Any] = lambda x: x) -> Any:
    """A SavedModel, which loads with a resource of its own that is made by a function."""
    made = tf.Module()
    made.serve = tf.function(
        lambda x: {"y": tf.matmul(before(x), tf.constant(W))},
        input_signature=[tf.TensorSpec((None, 16), tf.float32, name="x")],
    )
    tf.saved_model.save(made, str(path), signatures={"serving_default": made.serve.get_concrete_function()})
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same small model, quantized and saved as each kind that Octune hands out."""
    place = tmp_path_factory.mktemp("saved")
    perceptron = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    saved = tf.saved_model.load(str(module(place / "original")))
    models = {"graph": graph(), "saved_model": saved, "keras": perceptron, "function": saved.serve}
    models["function"] = saved.signatures["serving_default"]
    return {
        kind: octune.save(octune.quantize(model, calibration=[X]), place / kind)
        for kind, model in models.items()
    }


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def outputs(folder: Path, **options: Any) -> list[Any]:
    opened = open_any(folder, **options)
    return list(opened.run(opened.split({opened.inputs[0].name: X})[0]).values())


@pytest.mark.parametrize("kind", ["graph", "saved_model", "keras", "function"])
def test_plain_models_compute_the_same_without_trust(
    folders: dict[str, Path], elsewhere: Path, kind: str
) -> None:
    made = octune.load(folders[kind], trust=True)
    assert type(octune.load(folders[kind])) is type(made)
    np.testing.assert_array_equal(outputs(folders[kind]), outputs(folders[kind], trust=True))
    assert export(folders[kind], "tfserving", elsewhere / "served", name="m").is_dir()


class TestGraphs:
    def writing(self, marker: Path) -> Callable[[Any], Any]:
        def before(x: Any) -> Any:
            with tf.control_dependencies([tf.io.write_file(str(marker), "x")]):
                return tf.identity(x)

        return before

    def reading(self, marker: Path) -> Callable[[Any], Any]:
        return lambda x: x + tf.cast(tf.strings.length(tf.io.read_file(str(marker))), tf.float32)

    def calling_python(self, marker: Path) -> Callable[[Any], Any]:
        return lambda x: tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), (None, 16))

    def printing_to_a_file(self, marker: Path) -> Callable[[Any], Any]:
        def before(x: Any) -> Any:
            with tf.control_dependencies([tf.print(x, output_stream=f"file://{marker}")]):
                return tf.identity(x)

        return before

    @pytest.mark.parametrize("attack", ["writing", "reading", "calling_python", "printing_to_a_file"])
    @pytest.mark.parametrize("kind", ["graph", "saved_model"])
    def test_that_do_more_than_compute_are_refused(
        self, folders: dict[str, Path], elsewhere: Path, attack: str, kind: str
    ) -> None:
        marker = elsewhere / "marker"
        before = getattr(self, attack)(marker)

        def change(folder: Path, data: dict[str, Any]) -> None:
            if kind == "graph":
                (folder / "model.pb").write_bytes(graph(before).as_graph_def().SerializeToString())
            else:
                module(folder, before)

        folder = forged(folders[kind], elsewhere, change)
        for use in (
            octune.load,
            open_any,
            lambda path: export(path, "tfserving", elsewhere / "served", name="m"),
        ):
            with pytest.raises(ArtifactError, match="may do more than compute"):
                use(folder)
        assert not marker.exists()
        if attack == "writing":
            assert export(folder, "tfserving", elsewhere / "served", name="m", trust=True).is_dir()

    def test_functions_that_loading_runs_are_not_run(self, folders: dict[str, Path], elsewhere: Path) -> None:
        """TensorFlow's loader initialises resources with functions of the model's own."""
        marker = elsewhere / "marker"

        def change(folder: Path, data: dict[str, Any]) -> None:
            class Resource(tf.saved_model.experimental.TrackableResource):
                def _create_resource(self) -> Any:
                    return tf.raw_ops.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64)

                def _initialize(self) -> None:
                    tf.io.write_file(str(marker), "x")

            made = tf.saved_model.load(str(folder))
            holder = tf.Module()
            holder.serve, holder.resource = made.signatures["serving_default"], Resource()
            holder.touch = tf.function(
                lambda: holder.resource.resource_handle is not None, input_signature=[]
            )
            tf.saved_model.save(holder, str(folder), signatures={"serving_default": holder.serve})

        folder = forged(folders["saved_model"], elsewhere, change)
        marker.unlink(missing_ok=True)
        np.testing.assert_array_equal(outputs(folder), outputs(folders["saved_model"]))
        assert not marker.exists()
        octune.load(folder, trust=True)
        assert marker.exists()  # so it would have run


def keras_file(path: Path, edit: Callable[[dict[str, Any]], object] = lambda config: None) -> Path:
    """A small model, its configuration edited."""
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, name="d")])
    plain = path.with_name("plain.keras")
    model.save(plain)
    with zipfile.ZipFile(plain) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    edit(config)
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def layer(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["config"]["layers"][1]
    return found


class TestKeras:
    def test_plain_models_open(self, tmp_path: Path) -> None:
        assert open_model(str(keras_file(tmp_path / "m.keras")))(X).shape == (4, 8)

    @pytest.mark.parametrize("suffix", [".keras", ".h5"])
    def test_lambdas_are_not_run(self, tmp_path: Path, suffix: str) -> None:
        marker, path = tmp_path / "marker", tmp_path / f"m{suffix}"
        name = str(marker)
        hostile = keras.layers.Lambda(lambda x: (open(name, "w"), x)[1])  # noqa: SIM115
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8), hostile])
        marker.unlink(missing_ok=True)
        model.save(path)
        with pytest.raises(ModelError, match="Lambda"):
            open_model(str(path))
        assert not marker.exists()

    @pytest.mark.parametrize(
        "named",
        [
            {"module": "os", "class_name": "system", "registered_name": None},
            {"module": "keras.utils", "class_name": "get_file", "registered_name": None},
            {"module": "keras.layers", "class_name": "TorchModuleWrapper", "registered_name": None},
            {"module": "keras.layers", "class_name": "TFSMLayer", "registered_name": None},
        ],
    )
    def test_names_of_other_things_are_not_looked_up(self, tmp_path: Path, named: dict[str, Any]) -> None:
        path = keras_file(tmp_path / "m.keras", lambda config: layer(config).update(named))
        with pytest.raises(ModelError, match=r"not a part of Keras|code or another file"):
            open_model(str(path))

    def test_weights_in_another_file_are_not_read(self, tmp_path: Path) -> None:
        path = keras_file(tmp_path / "m.keras")
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        weights = io.BytesIO(parts["model.weights.h5"])
        with h5py.File(weights, "a") as file:
            file["secret"] = h5py.ExternalLink("/etc/passwd", "/")
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (parts | {"model.weights.h5": weights.getvalue()}).items():
                archive.writestr(name, content)
        with pytest.raises(ModelError, match="in another file"):
            open_model(str(path))

    def test_a_path_that_escapes_is_refused(self, tmp_path: Path) -> None:
        path = keras_file(tmp_path / "m.keras")
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../outside", "x")
        with pytest.raises(ModelError, match="outside the archive"):
            open_model(str(path))
