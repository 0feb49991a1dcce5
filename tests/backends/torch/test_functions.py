"""Ops that are functions: found, named, computed by layers, and left alone where they are something else."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import octune
from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import compile_model, export
from octune.backends.torch.functions.attention import attention
from octune.backends.torch.functions.calls import make_module, read_call
from octune.backends.torch.functions.layout import Layout
from octune.backends.torch.functions.weights import StandIn
from octune.backends.torch.layers import Layer
from octune.backends.torch.lowering import lower
from octune.calibration import Ranges
from octune.machine import probe_machine
from octune.plan import Plan, Scheme
from tests.backends.contract import BackendContract, Subject, calibrated, int8_plan
from tests.backends.torch.function_models import (
    MODELS,
    Branching,
    Case,
    Einsums,
    Encoder,
    Packed,
    Tied,
    Vision,
    images,
    parameter,
    tokens,
    vectors,
)

needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.make.__name__, scope="class")
class TestModels:
    @pytest.fixture(scope="class")
    @classmethod
    def parts(cls, case: Case) -> tuple[TorchBackend, Ranges, nn.Module, Any]:
        torch.manual_seed(0)
        backend = TorchBackend(case.make().eval(), Settings())
        ranges = calibrated(backend, case.batches)
        return (
            backend,
            ranges,
            backend.apply(int8_plan(backend, ranges), ranges),
            backend.split(case.batches[0])[0],
        )

    def test_ops_have_the_names_that_the_user_knows(self, parts: Any, case: Case) -> None:
        backend, ranges, *_ = parts
        found = {op.name: op.kind for op in backend.ops()}
        assert found == case.ops
        floats = {op.name for op in backend.ops() if not op.can("int8")}
        assert floats == set(case.floats)
        assert {op.name for op in backend.ops()} - floats <= set(ranges)

    def test_reasons_are_given(self, parts: Any, case: Case) -> None:
        notes = {op.name: op.note for op in parts[0].ops()}
        for name, reason in case.floats.items():
            assert reason in notes[name]

    def test_int8_is_close_and_much_smaller(self, parts: Any, case: Case) -> None:
        backend, ranges, int8, call = parts
        wanted, got, plain = (
            backend.run(model, call) for model in (backend.fp32_model(), int8, backend.apply(Plan(), ranges))
        )
        for name, array in wanted.items():
            np.testing.assert_allclose(plain[name], array, rtol=1e-3, atol=1e-4)
            assert not np.array_equal(got[name], array)
            assert np.abs(got[name] - array).max() < 0.08 * np.abs(array).max()
        assert backend.size(int8) < case.size * backend.size(backend.fp32_model())

    def test_harm_is_known_of_every_op(self, parts: Any, case: Case) -> None:
        backend, ranges, _, call = parts
        able = [op for op in backend.ops() if op.can("int8")]
        harm = backend.harm({op.name: [op.schemes[0]] for op in able}, ranges, [call])
        assert len(harm) == len(able)
        assert all(0 < value < 0.05 for value in harm.values())

    def test_every_op_is_timed(self, parts: Any, case: Case) -> None:
        backend, ranges, *_ = parts
        for op in backend.ops():
            if op.can("int8"):
                for scheme in (op.schemes[0], Scheme.fp32()):
                    backend.alone(op, scheme, ranges)()

    def test_saved_and_loaded_it_is_the_same_with_the_class_and_without(
        self, parts: Any, case: Case, tmp_path: Path
    ) -> None:
        backend, _, int8, call = parts
        metadata = backend.writer()(int8, tmp_path)
        assert ("program" in metadata) == case.exports
        wanted = backend.run(int8, call)
        again = TorchBackend.load(tmp_path, metadata, case.make)
        layers = [name for name, module in again.named_modules() if isinstance(module, Layer)]
        assert len(layers) == len(metadata["layers"])
        loaded = [again, *([TorchBackend.load(tmp_path, metadata)] if case.exports else [])]
        for model in loaded:
            for name, array in backend.run(model, call).items():
                assert np.array_equal(array, wanted[name])

    def test_what_is_compiled_computes_the_same(self, parts: Any, case: Case) -> None:
        backend, _, int8, call = parts
        if not case.exports:
            pytest.skip("what the model does is decided by data, so it cannot be exported")
        program, _ = export(int8, call)
        lower(program)
        wanted = backend.run(int8, call)
        got = backend.run(program.module(), call)
        for name, array in wanted.items():
            # a value on the edge may round to the other side
            assert np.abs(got[name] - array).max() < 0.05 * np.abs(array).max()


def test_the_users_model_stays_as_it_is() -> None:
    model = Encoder().eval()
    before = copy.deepcopy(model.state_dict())
    backend = TorchBackend(model, Settings())
    calibrated(backend, tokens())
    for one in (model, backend.fp32_model()):
        assert list(one.state_dict()) == list(before)
        assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), before.values(), strict=True))
        assert not any(isinstance(v, StandIn) for m in one.modules() for v in vars(m).values())


def test_a_branch_that_was_not_seen_computes_with_the_weights_as_floats() -> None:
    torch.manual_seed(0)
    model = Branching().eval()
    backend = TorchBackend(model, Settings())
    batches = [vectors()[0].abs(), -vectors()[0].abs()]
    ranges = calibrated(backend, batches)
    int8 = backend.apply(int8_plan(backend, ranges), ranges)
    with torch.inference_mode():
        for x in batches:
            wanted, got = model(x), int8(x)
            assert 0 < (wanted - got).abs().max() < 0.05 * wanted.abs().max()
    again = copy.deepcopy(int8)
    with torch.inference_mode():
        assert torch.equal(again(batches[1]), int8(batches[1]))


def test_products_that_stay_float_are_counted_as_theirs() -> None:
    torch.manual_seed(0)
    backend = TorchBackend(Einsums().eval(), Settings())
    inputs = backend.split(vectors()[0])[0]
    backend.prepare(inputs)
    work = backend.work(inputs)
    assert work.ops["each"] == 4 * 12 * 4 * 16 * 16
    assert work.ops["q"] == work.ops["k"] == work.ops["o"] == 4 * 12 * 64 * 64
    assert work.unseen == {"matmul": 2 * 4 * 4 * 12 * 12 * 16}  # of two activations


def test_a_table_that_is_also_multiplied_by_is_two_ops() -> None:
    torch.manual_seed(0)
    backend = TorchBackend(Tied().eval(), Settings())
    ranges = calibrated(backend, tokens())
    plan = Plan({"words.weight_linear": Scheme.int8()})
    model = backend.apply(plan, ranges)
    call = backend.split(tokens()[0])[0]
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds.count("Int8Linear") == 1
    assert kinds.count("Int8Embedding") == 0
    assert not np.array_equal(
        backend.run(model, call)["output"], backend.run(backend.fp32_model(), call)["output"]
    )


class Twins(nn.Module):
    """A tensor and a module with the same name, but for the ending."""

    def __init__(self) -> None:
        super().__init__()
        self.q_weight, self.q = parameter(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.q(F.linear(x, self.q_weight))
        return out


def test_names_of_ops_differ() -> None:
    backend = TorchBackend(Twins().eval(), Settings())
    calibrated(backend, vectors())
    assert [op.name for op in backend.ops()] == ["q_weight", "q"]


@pytest.mark.parametrize("make", [Packed, Einsums, Vision])
def test_a_program_has_the_ops_of_the_model_it_was_exported_from(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    case = next(case for case in MODELS if case.make is make)
    program, _ = export(make().eval(), Inputs((case.batches[0],)))
    torch.export.save(program, tmp_path / "model.pt2")
    backend = TorchBackend(TorchBackend.open(str(tmp_path / "model.pt2")), Settings())
    ranges = calibrated(backend, case.batches)
    assert {op.name: op.kind for op in backend.ops()} == case.ops
    int8 = backend.apply(int8_plan(backend, ranges), ranges)
    call = backend.split(case.batches[0])[0]
    again, _ = export(int8, call)
    wanted, got = backend.run(int8, call)["output"], backend.run(again.module(), call)["output"]
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_model_can_be_pickled() -> None:
    backend = TorchBackend(Encoder().eval(), Settings())
    ranges = calibrated(backend, tokens())
    int8 = backend.apply(int8_plan(backend, ranges), ranges)
    with torch.inference_mode():
        assert torch.equal(pickle.loads(pickle.dumps(int8))(tokens()[0]), int8(tokens()[0]))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight)


class Hidden(nn.Module):
    product = staticmethod(product)

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.chained, self.plain = parameter(64, 32), parameter(32, 16), parameter(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.product(x, self.weight)
        return torch.linalg.multi_dot([hidden.flatten(0, 1), self.chained]) @ self.plain


@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")
def test_what_multiplies_out_of_sight_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hidden, "product", staticmethod(torch.jit.script(product)))
    backend = TorchBackend(Hidden().eval(), Settings())
    calibrated(backend, vectors())
    notes = {op.name: op.note for op in backend.ops()}
    assert notes["plain"] == ""
    assert "TorchScript" in notes["weight"]
    assert "inside linalg_multi_dot" in notes["chained"]


class Latents(nn.Module):
    """Learned numbers that are what weights are multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.table, self.k = parameter(1, 4, 64), parameter(12, 8), parameter(64, 64)
        self.bias = nn.Linear(8, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = F.linear(x, self.k) + self.bias(self.table)
        return F.scaled_dot_product_attention(self.latents.expand(len(x), -1, -1), k, k)


def test_learned_inputs_are_not_taken_for_weights() -> None:
    backend = TorchBackend(Latents().eval(), Settings())
    ranges = calibrated(backend, vectors())
    assert {op.name for op in backend.ops()} == {"k", "bias"} == set(ranges)


def test_a_weight_that_a_module_of_a_known_kind_computes_is_found_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(64, 8, 3)), nn.Linear(62, 4))
    backend = TorchBackend(model.eval(), Settings())
    calibrated(backend, [x.transpose(1, 2).repeat(1, 1, 6)[..., :64] for x in vectors()])
    assert [op.name for op in backend.ops()] == ["0", "1"]
    assert len(backend.ops()[0].schemes) > 1


# -- reading calls -------------------------------------------------------------------------------------------


def shaped(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


READ: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...], int]] = [
    (F.linear, (shaped(2, 3, 8), shaped(4, 8)), 1),
    (F.linear, (shaped(2, 8), shaped(4, 8), shaped(4)), 1),
    (torch.matmul, (shaped(2, 3, 8), shaped(8, 4)), 1),
    (torch.matmul, (shaped(8), shaped(8, 4)), 1),
    (torch.matmul, (shaped(4, 8), shaped(5, 8, 3)), 0),
    (torch.matmul, (shaped(4, 8), shaped(8)), 0),
    (torch.mm, (shaped(3, 8), shaped(8, 4)), 1),
    (torch.addmm, (shaped(4), shaped(3, 8), shaped(8, 4)), 2),
    (torch.einsum, ("ibh,hnd->ibnd", shaped(2, 3, 8), shaped(8, 4, 2)), 2),
    (torch.einsum, ("ibnd,hnd->ibh", shaped(2, 3, 4, 2), shaped(8, 4, 2)), 2),
    (torch.einsum, ("oi, b i t -> b t o", shaped(5, 8), shaped(2, 8, 3)), 1),
    (torch.einsum, ("...i,io->...o", shaped(2, 3, 8), shaped(8, 5)), 2),
    (torch.einsum, ("b...i,oi->o...b", shaped(2, 3, 8), shaped(5, 8)), 2),
    (torch.tensordot, (shaped(2, 3, 8), shaped(8, 5), 1), 1),
    (torch.tensordot, (shaped(2, 3, 8), shaped(3, 8, 5)), 1),
    (torch.tensordot, (shaped(2, 4, 8), shaped(8, 5, 4), ([2, 1], [0, 2])), 1),
    (F.conv1d, (shaped(2, 4, 9), shaped(6, 2, 3), shaped(6), 2, 1, 1, 2), 1),
    (F.conv2d, (shaped(2, 4, 9, 9), shaped(6, 4, 3, 3), None, (2, 1), "valid"), 1),
    (F.conv3d, (shaped(1, 2, 5, 5, 5), shaped(3, 2, 3, 3, 3)), 1),
    (F.conv_transpose2d, (shaped(1, 4, 5, 5), shaped(4, 3, 3, 3), shaped(3), 2, 1, 1), 1),
    (F.embedding, (torch.tensor([[1, 2], [0, 3]]), shaped(5, 4)), 1),
    (F.embedding_bag, (torch.tensor([[1, 2], [0, 3]]), shaped(5, 4)), 1),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "which"), READ)
def test_a_call_is_that_of_a_module(
    function: Callable[..., torch.Tensor], args: tuple[Any, ...], which: int
) -> None:
    weight = args[which]
    call = read_call(function, args, {}, lambda value: value is weight)
    assert call is not None
    turned = weight.permute(call.order)
    if call.kind == "Linear":
        turned = turned.reshape(turned.shape[: call.outputs].numel(), -1)
    made = call.after(make_module(call.kind, turned, call.bias, dict(call.options))(*call.inputs))
    torch.testing.assert_close(made, function(*args))


@pytest.mark.parametrize(
    ("function", "args", "which"),
    [
        (torch.matmul, (shaped(2, 3, 8), shaped(2, 8, 4)), 1),
        (F.linear, (shaped(3, 8), shaped(4, 8)), 0),
        (torch.einsum, ("bnd,nde->bne", shaped(3, 4, 8), shaped(4, 8, 8)), 2),
        (torch.einsum, ("ij,ji->i", shaped(3, 4), shaped(4, 3)), 1),
        (torch.einsum, ("ij,jk,kl->il", shaped(3, 4), shaped(4, 3), shaped(3, 2)), 1),
        (torch.einsum, ("ij,jk", shaped(3, 4), shaped(4, 3)), 1),
        (torch.addmm, (shaped(3, 4), shaped(3, 8), shaped(8, 4)), 2),
        (F.embedding, (torch.tensor([1]), shaped(5, 4), None, 1.0), 1),
        (torch.add, (shaped(4, 4), shaped(4, 4)), 1),
    ],
)
def test_other_calls_are_not(function: Callable[..., Any], args: tuple[Any, ...], which: int) -> None:
    assert read_call(function, args, {}, lambda value: value is args[which]) is None


# -- stand-ins -----------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in() -> StandIn:
    owner = nn.Module()
    owner.weight = parameter(6, 8)
    return StandIn(owner, "weight", {}, 48, Layout((6, 8), (8, 1)))


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w.t(),
        lambda w: w.T,
        lambda w: w.mT,
        lambda w: w[2:4],
        lambda w: w[:, 1],
        lambda w: w[torch.tensor(3)],
        lambda w: w.chunk(3)[1],
        lambda w: w.split([2, 4])[1],
        lambda w: w.unflatten(0, (2, 3)).permute(2, 0, 1),
        lambda w: w.view(2, 24).reshape(4, 12),
        lambda w: w.unsqueeze(0).expand(2, -1, -1),
        lambda w: w.detach().contiguous().float().to(torch.float32),
        lambda w: torch.unbind(w)[5],
        lambda w: list(w)[2],
        lambda w: w.to(torch.ones(3)).type_as(torch.ones(2, 2)),
        lambda w: w.data,
    ],
)
def test_parts_of_a_stand_in_are_stand_ins(stand_in: StandIn, view: Callable[[Any], torch.Tensor]) -> None:
    part, wanted = view(stand_in), view(stand_in.owner.weight)
    assert isinstance(part, StandIn)
    assert part.shape == wanted.shape
    assert torch.equal(part.floats(), wanted)


@pytest.mark.parametrize(
    "compute",
    [
        lambda w: w + 1,
        lambda w: 2 * w,
        lambda w: torch.cat([w, w]),
        lambda w: w[torch.tensor([1, 2])],
        lambda w: w.double(),
        lambda w: w.to(torch.ones(2, dtype=torch.float64)),
        lambda w: w.clone().add_(1),
        lambda w: torch.ones(3, 6) @ w,
        lambda w: w.sum(),
        lambda w: w.t().contiguous(),
        lambda w: F.softmax(w, -1),
        lambda w: torch.jit.script(_doubled)(w),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")
def test_what_is_computed_from_one_is_computed_from_its_numbers(
    stand_in: StandIn, compute: Callable[[Any], torch.Tensor]
) -> None:
    made = compute(stand_in)
    assert not isinstance(made, StandIn)
    assert torch.equal(made, compute(stand_in.owner.weight))


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_stand_in_says_of_itself_what_a_tensor_would(stand_in: StandIn) -> None:
    assert (stand_in.shape, stand_in.size(1), stand_in.ndim, len(stand_in)) == ((6, 8), 8, 2, 6)
    assert (stand_in.dtype, stand_in.device.type, stand_in.requires_grad) == (torch.float32, "cpu", False)
    assert isinstance(stand_in, torch.Tensor)
    assert float(stand_in.sum()) == float(stand_in.owner.weight.detach().sum())  # type: ignore[operator, arg-type]


# -- attention -----------------------------------------------------------------------------------------------

CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
PADDING = torch.tensor([[False, False, False, False, True], [False] * 5])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL < 0, "need_weights": False},
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
        {"attn_mask": CAUSAL, "is_causal": True, "key_padding_mask": PADDING, "need_weights": False},
        {"attn_mask": CAUSAL < 0, "key_padding_mask": PADDING},
        {"attn_mask": CAUSAL.expand(8, 5, 5), "need_weights": False},
        {"key_padding_mask": PADDING, "need_weights": False},
    ],
)
@pytest.mark.parametrize(
    "kinds", [{}, {"batch_first": True}, {"bias": False}, {"kdim": 12, "vdim": 12}, {"add_bias_kv": True},
              {"add_zero_attn": True}]
)  # fmt: skip
def test_attention_computes_what_pytorch_does(
    options: dict[str, Any], kinds: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, **kinds).eval().requires_grad_(False)
    x = torch.randn(2, 5, 16) if kinds.get("batch_first") else torch.randn(5, 2, 16)
    other = x[..., :12] if "kdim" in kinds else x
    key = other.clone()
    for given in ([(x, x, x)] if "kdim" not in kinds else []) + [(x, key, key), (x, key, key + 1)]:
        wanted = module(*given, **options)
        with monkeypatch.context() as patched:
            patched.setattr(F, "multi_head_attention_forward", attention)
            got = module(*given, **options)
        for a, b in zip(wanted, got, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_attention_of_one_sample_without_a_batch() -> None:
    torch.manual_seed(0)
    backend = TorchBackend(Single().eval(), Settings())
    ranges = calibrated(backend, [torch.randn(5, 16)])
    assert {"mixed.in_proj_q", "mixed.in_proj_k", "mixed.in_proj_v", "mixed.out_proj"} == set(ranges)


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.MultiheadAttention(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.mixed(x, x, x)[0]
        return made


# -- the whole way -------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.slow
def test_tuned_with_the_defaults_it_is_int8_and_loads_without_its_class(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Vision().eval()
    data = images(8)
    result = octune.tune(model, calibration=data[:4], evaluation=data[4:], progress=False)
    assert result.met, str(result)
    assert {op.name for op in result.ops if op.can("int8")} == set(MODELS[2].ops)
    result.save(tmp_path / "saved")
    torch.save(data[0], tmp_path / "x.pt")
    script = (
        "import sys, torch, octune\n"
        "model = octune.load(sys.argv[1] + '/saved')\n"
        "torch.save(model(torch.load(sys.argv[1] + '/x.pt')), sys.argv[1] + '/y.pt')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=300, cwd=tmp_path)
    with torch.inference_mode():
        wanted = result.model(data[0])
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), wanted)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("make", [Encoder, Einsums])
def test_native_code_computes_what_the_eager_model_does(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    batches = tokens() if make is Encoder else vectors()
    backend = TorchBackend(make().eval(), Settings())
    ranges = calibrated(backend, batches)
    int8 = backend.apply(int8_plan(backend, ranges), ranges)
    compiled = compile_model(int8, backend.split(batches[0])[0])
    for batch in (batches[1], batches[0][:1, :7]):
        call = backend.split(batch)[0]
        assert compiled.signature.matches(call.args, call.kwargs)
        wanted, got = backend.run(int8, call)["output"], backend.run(compiled, call)["output"]
        assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.slow
def test_xlnet_is_tuned_and_built_again_from_its_configuration(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.XLNetConfig(vocab_size=200, d_model=64, n_layer=2, n_head=4, d_inner=128)
    model = transformers.XLNetForSequenceClassification(config).eval()
    data = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tokens(8)]
    eager = {"performance": {"compile": "never"}}
    result = octune.tune(model, calibration=data[:4], evaluation=data[4:], config=eager, progress=False)
    assert result.met, str(result)
    able = {op.name for op in result.ops if op.can("int8")}
    assert {f"transformer.layer.1.rel_attn.{name}" for name in "qkvor"} <= able
    made = octune.quantize(
        model,
        calibration=data[:4],
        plan=Plan(dict.fromkeys(able - {"transformer.word_embedding"}, Scheme.int8())),
    )
    octune.save(made, tmp_path / "saved")
    loaded = octune.load(tmp_path / "saved")
    with torch.inference_mode():
        assert torch.equal(loaded(**data[0]).logits, made(**data[0]).logits)
        assert not torch.equal(loaded(**data[0]).logits, model(**data[0]).logits)


@pytest.mark.slow
def test_a_model_that_decides_by_its_data_is_tuned() -> None:
    torch.manual_seed(0)
    data = [x.abs() for x in vectors(8)]
    result = octune.tune(Branching().eval(), calibration=data[:4], evaluation=data[4:], progress=False)
    assert result.met, str(result)
    assert any("third: its weight is computed" in note for note in result.notes)


class TestContract(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        torch.manual_seed(0)
        return Subject(Encoder().eval(), [(ids, torch.zeros(len(ids))) for ids in tokens()], Encoder)
