"""One checkpoint, one plan, the same ranges: PyTorch and TensorFlow int8 give the same answers but for
rounding.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.backends.base import Backend
from octune.backends.terms import Settings
from octune.calibration import Ranges, collect
from octune.plan import Plan, Scheme
from octune.tasks import load_task
from tests.examples.load import load_example

pytest.importorskip("tensorflow")
pytest.importorskip("torch")
pytestmark = [pytest.mark.shared, pytest.mark.slow]

BATCHES = 8
NAMES = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def as_torch_calls_it(name: str) -> str:
    """``bert/encoder/layer_3/output/dense/MatMul`` -> ``bert.encoder.layer.3.output.dense``."""
    plain = name.removesuffix("/MatMul")
    return "classifier" if plain == "loss" else plain.replace("/", ".").replace("layer_", "layer.")


def answers(backend: Backend, model: Any, batches: list[Any]) -> Any:
    return np.concatenate(
        [np.asarray(backend.run(model, backend.split(inputs)[0])["logits"]) for inputs, _ in batches]
    )


def test_both_frameworks_agree_on_sst2(shared: Path) -> None:
    from octune.backends.tensorflow.backend import TensorFlowBackend
    from octune.backends.torch.backend import TorchBackend
    from octune.backends.torch.sources import open_model

    folder = shared / "models" / "minilm-l6-sst2"
    data = load_task("sst2", shared / "data" / "glue", tokenizer=str(folder))
    batches = list(data.evaluation)
    renamed = [({NAMES[name]: array for name, array in inputs.items()}, label) for inputs, label in batches]
    graph = load_example("tensorflow/bert_squad/model.py").classifier_graph(folder)
    torch_side = TorchBackend(open_model(str(folder)), Settings())
    tf_side = TensorFlowBackend(graph, Settings(tuple(NAMES.values()), ("logits",)))

    ranges = collect(
        torch_side, (torch_side.split(batch)[0] for batch in islice(data.calibration, BATCHES)), BATCHES
    )
    static = Scheme.int8("static")
    linears = {op.name for op in torch_side.ops() if op.kind == "linear"}
    # The graph looks segments up by a matmul, which PyTorch does not.
    tf_plan = Plan(
        {
            op.name: static
            for op in tf_side.ops()
            if static in op.schemes and as_torch_calls_it(op.name) in linears
        }
    )
    torch_plan = Plan({as_torch_calls_it(name): scheme for name, scheme in tf_plan.items()})
    assert set(torch_plan) == linears
    assert len(linears) == 38  # six layers of six, the pooler and the classifier
    tf_ranges = Ranges({name: ranges[as_torch_calls_it(name)] for name in tf_plan}, ranges.samples)

    labels = np.concatenate([np.asarray(label) for _, label in batches])
    exact = [
        answers(side, side.fp32_model(), part) for side, part in ((torch_side, batches), (tf_side, renamed))
    ]
    np.testing.assert_allclose(exact[0], exact[1], atol=1e-3)
    int8 = [
        answers(torch_side, torch_side.apply(torch_plan, ranges), batches),
        answers(tf_side, tf_side.apply(tf_plan, tf_ranges), renamed),
    ]
    right = [np.asarray(each.argmax(1) == labels) for each in int8]
    # Both round the same values, but not at the same places (residuals, sums): few answers differ, and
    # neither is the better one.
    assert np.mean(right[0] != right[1]) < 0.02
    assert abs(right[0].mean() - right[1].mean()) < 0.01
    spread = float(np.linalg.norm(int8[0] - int8[1]) / np.linalg.norm(exact[0]))
    assert spread < 0.1
    tf_side.close()
