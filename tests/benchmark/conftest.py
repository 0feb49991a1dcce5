"""Models of all kinds to time: the digits' perceptron and a small BERT, each made once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import octune
from tests.digits import config, digits


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with digits.onnx."""
    import torch

    folder = tmp_path_factory.mktemp("models")
    torch.onnx.export(
        digits().model(),
        (digits().test[:2],),
        folder / "digits.onnx",
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "rows"}, "logits": {0: "rows"}},
        dynamo=False,
    )
    return folder


@pytest.fixture(scope="session")
def onnx_file(models: Path) -> str:
    return str(models / "digits.onnx")


@pytest.fixture(scope="session")
def hugging_face(models: Path) -> str:
    from tests.backends.torch.models import tiny_bert

    tiny_bert().save_pretrained(models / "bert")
    return str(models / "bert")


@pytest.fixture(scope="session")
def saved(models: Path) -> str:
    """A folder that Octune saved."""
    data = digits()
    tuned = octune.tune(
        data.model(), calibration=data.batches(), evaluate=data.accuracy, config=config(strategy="basic")
    )
    return str(tuned.save(models / "saved"))


@pytest.fixture(scope="session")
def saved_model(models: Path) -> str:
    """A SavedModel of one product."""
    import tensorflow as tf

    module = tf.Module()
    module.weight = tf.Variable(tf.ones((64, 10)))
    module.serve = tf.function(
        lambda x: {"logits": x @ module.weight}, input_signature=[tf.TensorSpec((None, 64), tf.float32, "x")]
    )
    tf.saved_model.save(module, str(models / "tf"), signatures={"serving_default": module.serve})
    return str(models / "tf")


@pytest.fixture
def two_cores() -> Iterator[list[int]]:
    """Two cores for this test: processes of a test run have a share of them each."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    cores = sorted(os.sched_getaffinity(0))[:2]
    try:
        if len(cores) < 2:
            pytest.skip("needs two cores")
        os.sched_setaffinity(0, cores)
        yield cores
    finally:
        os.sched_setaffinity(0, before)
