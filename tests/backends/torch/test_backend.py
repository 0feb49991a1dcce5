"""What is special about PyTorch: discovery, shared and tied modules, batch forms, padding, hooks, fast
paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BatchEncoding, GPT2Config, GPT2LMHeadModel

from octune.backends import Settings, backend_for
from octune.backends.torch import TorchBackend
from octune.backends.torch.layers import Layer
from octune.errors import DataError, ModelError
from octune.machine import Machine, pretending
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches
from tests.machines import AMX, AVX2, VNNI, runnable


def open_backend(model: nn.Module) -> TorchBackend:
    backend = backend_for(model, Settings())
    assert isinstance(backend, TorchBackend)
    return backend


def test_finds_linears_embeddings_and_convolutions() -> None:
    kinds = [op.kind for op in open_backend(tiny_bert()).ops()]
    assert kinds.count("linear") == 2 * 6 + 2
    assert kinds.count("embedding") == 3
    assert {op.kind for op in open_backend(small_cnn()).ops()} == {"conv2d", "linear"}


def test_gpt2_conv1d_and_tied_head_are_handled_and_reported() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=4)).eval()
    backend = open_backend(model)
    batches = [{"input_ids": torch.randint(0, 100, (4, 10))} for _ in range(2)]
    ranges = calibrated(backend, batches)
    kinds = {op.kind for op in backend.ops()}
    assert kinds == {"transposed_linear", "linear", "embedding"}
    assert any("tied" in note for note in backend.notes)
    call = backend.split(batches[0])[0]
    quantized = backend.apply(int8_plan(backend, ranges), ranges)
    wanted, got = backend.run(backend.fp32_model(), call)["logits"], backend.run(quantized, call)["logits"]
    assert np.abs(wanted - got).mean() < 0.2 * wanted.std()


def test_a_shared_module_is_one_op_and_replaced_everywhere() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(16, 4))
    backend = open_backend(model)
    assert [op.name for op in backend.ops()] == ["0", "3"]
    assert backend.ops()[0].note == "shared: also used as 2"
    batches = [torch.randn(8, 16)]
    quantized = backend.apply(Plan({"0": Scheme.int8("dynamic")}), calibrated(backend, batches))
    assert isinstance(quantized[0], Layer)
    assert quantized[0] is quantized[2]


class Forgetful(nn.Module):
    """Has a linear that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(16, 16)
        self.unused = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_an_op_that_never_runs_is_not_observed() -> None:
    backend = open_backend(Forgetful())
    assert set(calibrated(backend, [torch.randn(4, 16)])) == {"used"}


def test_padding_does_not_widen_a_range() -> None:
    model = tiny_bert()
    batches = token_batches(1)
    inputs, _ = batches[0]
    clean = calibrated(open_backend(model), batches)
    garbage = {
        **inputs,
        "input_ids": torch.where(
            inputs["attention_mask"].bool(), inputs["input_ids"], torch.full_like(inputs["input_ids"], 7)
        ),
    }
    dirty = calibrated(open_backend(model), [(garbage, None)])
    for name in clean:
        if "embeddings" not in name and "pooler" not in name and "classifier" not in name:
            assert clean[name].low == pytest.approx(dirty[name].low, abs=1e-4), name
            assert clean[name].high == pytest.approx(dirty[name].high, abs=1e-4), name


@pytest.mark.parametrize(
    ("form", "labelled"),
    [
        (lambda i, y: i, False),
        (lambda i, y: (i, y), True),
        (lambda i, y: [i, y], True),
        (lambda i, y: BatchEncoding({**i, "labels": y}), True),
        (lambda i, y: ((i["input_ids"], i["attention_mask"]), y), True),
        (lambda i, y: {name: value.numpy() for name, value in i.items()}, False),
        (lambda i, y: {**i, "labels": y, "idx": y}, True),
    ],
    ids=["dict", "pair", "list", "BatchEncoding", "positional pair", "numpy", "extra column"],
)
def test_batch_forms(form: Any, labelled: bool) -> None:
    backend = open_backend(tiny_bert())
    inputs, label = token_batches(1)[0]
    call, found = backend.split(form(inputs, label))
    assert (found is not None) == labelled
    assert call.batch_size == 8
    wanted = backend.run(backend.fp32_model(), backend.split((inputs, label))[0])["logits"]
    np.testing.assert_allclose(backend.run(backend.fp32_model(), call)["logits"], wanted, rtol=1e-5)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(a + b)


def test_a_tuple_that_the_model_wants_whole_is_passed_whole() -> None:
    backend = open_backend(TwoInputs())
    call, label = backend.split((torch.randn(2, 8), torch.randn(2, 8)))
    assert len(call.args) == 2
    assert label is None
    call, label = open_backend(TwoInputs()).split((torch.randn(2, 8), torch.randn(2, 8), torch.zeros(2)))
    assert len(call.args) == 2
    assert label is not None


@pytest.mark.parametrize("batch", ["text", (["a", "b"], 1), {"x": "text"}, object(), ()])
def test_batches_that_cannot_be_run_are_refused_with_a_message(batch: Any) -> None:
    with pytest.raises(DataError, match="Expected"):
        open_backend(nn.Linear(4, 2)).split(batch)


def test_hooks_of_the_user_stay_and_see_the_quantized_output() -> None:
    seen = []
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    backend = open_backend(model)
    ranges = calibrated(backend, [torch.randn(8, 16)])
    seen.clear()
    backend.apply(int8_plan(backend, ranges), ranges)(torch.randn(2, 16))
    assert seen == ["Int8Linear"]


def test_the_transformer_encoder_fast_path_does_not_pass_over_int8() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    backend = open_backend(model)
    batches = [torch.randn(4, 6, 32)]
    ranges = calibrated(backend, batches)
    assert {"layers.0.linear1", "layers.0.self_attn.in_proj", "layers.0.self_attn.out_proj"} <= set(ranges)
    call = backend.split(batches[0])[0]
    quantized = backend.run(backend.apply(int8_plan(backend, ranges), ranges), call)["output"]
    assert not np.array_equal(quantized, backend.run(backend.fp32_model(), call)["output"])


def test_batchnorms_are_folded_only_where_nothing_else_reads_the_convolution() -> None:
    class Peeking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return self.bn(y) + y

    torch.manual_seed(0)
    peeking = Peeking()
    peeking(torch.randn(8, 3, 8, 8) * 3)
    backend = open_backend(peeking.eval())
    calibrated(backend, [torch.randn(2, 3, 8, 8)])
    assert not any("folded" in note for note in backend.notes)
    backend = open_backend(small_cnn())
    calibrated(backend, image_batches(1))
    assert any("folded into convolutions: 5 BatchNorms" in note for note in backend.notes)


def test_a_quantized_model_is_refused() -> None:
    backend = open_backend(tiny_bert())
    batches = token_batches(1)
    ranges = calibrated(backend, batches)
    with pytest.raises(ModelError, match="already quantized"):
        open_backend(backend.apply(int8_plan(backend, ranges), ranges))


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    class Locked(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("locked")

    with pytest.raises(ModelError, match="cannot be copied"):
        open_backend(nn.Sequential(Locked(4, 4)))


def test_candidates_do_not_reach_the_reference() -> None:
    backend = open_backend(tiny_bert())
    before = backend.fingerprint()
    backend.fp32_model().half()
    backend.fp32_model().train()
    assert backend.fingerprint() == before
    assert not backend.fp32_model().training


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_odd_inputs_of_an_int8_linear(mode: Any) -> None:
    torch.manual_seed(0)
    backend = open_backend(nn.Sequential(nn.Linear(16, 8)))
    ranges = calibrated(backend, [torch.randn(8, 16)])
    model = backend.apply(Plan({"0": Scheme.int8(mode)}), ranges)
    assert model(torch.randn(0, 16)).shape == (0, 8)
    assert model(torch.randn(16)).shape == (8,)
    assert model(torch.randn(2, 3, 4, 16)).shape == (2, 3, 4, 8)
    assert model(torch.randn(2, 16).half()).dtype is torch.float16
    if mode == "dynamic":
        assert model(torch.full((2, 16), float("nan"))).isnan().all()


@pytest.mark.parametrize("scheme", runnable([Scheme.int8("dynamic"), Scheme.bf16()]))
def test_evaluation_code_that_writes_into_weights_does_not_reach_the_reference(scheme: Scheme) -> None:
    backend = open_backend(tiny_bert())
    ranges = calibrated(backend, token_batches(1))
    before = backend.fingerprint()
    for model in (backend.fp32_model(), backend.apply(Plan({"classifier": scheme}), ranges)):
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.data.zero_()
    assert backend.fingerprint() == before


@pytest.mark.parametrize("machine", [AVX2, VNNI, AMX], ids=lambda machine: machine.generation)
def test_int8_is_offered_on_every_cpu_and_bf16_where_it_is_computed(machine: Machine) -> None:
    with pretending(machine):
        ops = [op for op in open_backend(tiny_bert()).ops() if len(op.schemes) > 1]
    assert ops
    assert all(op.can("int8") for op in ops)
    assert all(op.can("bf16") == (machine is AMX) for op in ops)


def test_layers_for_a_newer_cpu_can_be_made_on_any() -> None:
    """Made and not run: this CPU need not have what they ask for."""
    with pretending(AMX):
        backend = open_backend(tiny_bert())
        ranges = calibrated(backend, token_batches(1))  # ops are found again when the model gets ready
    names = {"classifier": "bf16_linear", "bert.embeddings.word_embeddings": "bf16_embedding"}
    made = backend.apply(Plan(dict.fromkeys(names, Scheme.bf16())), ranges)
    for name, kind in names.items():
        layer = made.get_submodule(name)
        assert isinstance(layer, Layer)
        assert layer.kind == kind
        assert layer.get_buffer("weight").dtype is torch.bfloat16
