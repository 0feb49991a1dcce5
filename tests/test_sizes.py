"""Inputs of the sizes that a user names are made from real samples, and all of them count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.config import Config, parse_config
from octune.cost.latency import Mix, Timing, compare
from octune.cost.load import Patience
from octune.errors import ConfigError, DataError
from octune.sizes import other_size, sizes_of
from octune.tune import tune
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches


def performance(**keys: Any) -> Any:
    return Config.build(performance=keys).performance


@pytest.fixture(scope="module")
def bert() -> tuple[TorchBackend, Inputs]:
    backend = TorchBackend(tiny_bert(), Settings())
    return backend, backend.split(token_batches(1, 8, 12)[0])[0]


def test_samples_are_cut_and_repeated_to_the_sizes_that_were_asked_for(bert: Any) -> None:
    backend, example = bert
    asked = [{"batch": 1, "sequence": 5}, {"batch": 20, "sequence": 30, "weight": 3}]
    first, second = sizes_of(backend, example, performance(inputs=asked))
    assert (first.label, second.label) == ("batch 20, sequence 30", "batch 1, sequence 5")
    assert (first.weight, second.weight) == (0.75, 0.25)
    for size, shape in ((first, (20, 30)), (second, (1, 5))):
        assert {tuple(tensor.shape) for tensor in size.inputs.arrays} == {shape}
    ids, known = first.inputs.kwargs["input_ids"], example.kwargs["input_ids"]
    assert torch.equal(ids[:8, :12], known)  # real samples, not noise
    assert torch.equal(ids[8:16, 12:24], known)


def test_for_throughput_a_call_counts_by_its_samples(bert: Any) -> None:
    asked = [{"batch": 1}, {"batch": 4}]
    found = sizes_of(*bert, performance(inputs=asked, objective="throughput"))
    assert {size.label.partition(",")[0]: size.weight for size in found} == {"batch 1": 0.5, "batch 4": 0.125}


def test_without_sizes_there_are_none(bert: Any) -> None:
    assert sizes_of(*bert, performance()) == ()


def test_what_cannot_be_made_or_run_is_refused(bert: Any) -> None:
    backend, example = bert
    with pytest.raises(ConfigError, match=r"there is none\. Give calibration="):
        sizes_of(backend, None, performance(inputs=[{"batch": 1}]))
    with pytest.raises(DataError, match=r"performance.inputs\[1\] \(sequence 5000\) cannot be run"):
        sizes_of(backend, example, performance(inputs=[{"batch": 1}, {"sequence": 5000}]))
    images = TorchBackend(small_cnn(), Settings())
    with pytest.raises(DataError, match=r"\(sequence 16\) cannot be made .* have no sequences"):
        sizes_of(images, images.split(image_batches(1)[0])[0], performance(inputs=[{"sequence": 16}]))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"inputs": [{"batch": 0}]}, "a whole number >= 1"),
        ({"inputs": [{"weight": 0}]}, "a number > 0"),
        ({"inputs": [{"length": 3}]}, "length"),
        ({"inputs": [{"batch": 1}], "batch_size": 4}, "both 'inputs' and 'batch_size'"),
        ({"objective": "speed"}, "latency"),
    ],
)
def test_mistakes_are_named(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Config.build(performance=keys)


def test_they_survive_a_round_trip() -> None:
    config = parse_config({"performance": {"inputs": [{"batch": 2, "sequence": 9, "weight": 0.5}]}})
    assert parse_config(config.to_yaml()) == config
    assert Config.from_json(config.to_json()) == config


def test_another_size_is_another_batch_and_half_the_length(bert: Any) -> None:
    backend, example = bert
    found = other_size(backend, example)
    assert found is not None
    assert found[0] == "batch 1, sequence 6"
    images = TorchBackend(small_cnn(), Settings())
    single = images.split((image_batches(1)[0][0][:1], torch.zeros(1)))[0]
    found = other_size(images, single)
    assert found is not None
    assert (found[0], found[1].batch_size) == ("batch 4", 4)


def test_the_weighted_time_is_what_is_compared() -> None:
    """The candidate is twice as fast on one size and half as fast on the other, which counts nine times."""
    now = 0.0

    def taking(seconds: float) -> Any:
        def call() -> None:
            nonlocal now
            now += seconds

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octune.cost.latency.time.perf_counter", lambda: now)
        slow = Mix([(0.9, taking(0.010)), (0.1, taking(0.100))])
        fast = Mix([(0.9, taking(0.020)), (0.1, taking(0.050))])
        timed = compare(slow, fast, Timing(iterations=6), patience=Patience(0.0))
    assert timed.speed.ratio == pytest.approx((0.9 * 10 + 0.1 * 100) / (0.9 * 20 + 0.1 * 50))
    assert timed.latency_ms == pytest.approx(23.0)
    assert (slow.medians_ms, fast.medians_ms) == (pytest.approx([10, 100]), pytest.approx([20, 50]))


def test_a_run_is_chosen_by_all_sizes_and_says_how_fast_it_is_at_each() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4)).eval()
    batches = [torch.randn(16, 256) for _ in range(3)]
    result = tune(
        model,
        calibration=batches,
        evaluate=lambda model: 1.0,
        config={"performance": {"inputs": [{"batch": 1}, {"batch": 64}], "compile": "never"}},
        progress=False,
    )
    assert result.sizes == ("batch 1", "batch 64")
    trial = result.trials[0]
    assert len(trial.sizes_ms) == 2
    assert trial.sizes_ms[0][0] < trial.sizes_ms[1][0]  # 64 samples take longer than one, in fp32
    assert trial.latency_ms == pytest.approx(np.mean([fast for _, fast in trial.sizes_ms]), rel=0.5)
    if result.best.form != "fp32":
        assert "batch 64:" in str(result)
    assert "2 sizes of inputs, weighted" in str(result) or result.best.form == "fp32"
