"""The compiled form: the same plan as native code, for every shape, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import CompiledModel, Signature, compile_model, dynamic_dims, export
from octune.backends.torch.digest import digest_of_program
from octune.backends.torch.kinds.conv import Int8Conv2d
from octune.backends.torch.lowering import lower
from octune.backends.torch.portable import ProgramModel
from octune.calibration import Ranges
from octune.engine.forms import FLOAT_PRECISION
from octune.errors import UnsupportedError
from octune.harm.probe import largest_change
from octune.machine import pretending, probe_machine
from octune.opening import open_model
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches

needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")


def prepared(model: nn.Module, batches: list[Any]) -> tuple[TorchBackend, Ranges, nn.Module, Inputs]:
    backend = TorchBackend(model, Settings())
    ranges = calibrated(backend, batches)
    return backend, ranges, backend.apply(int8_plan(backend, ranges), ranges), backend.split(batches[0])[0]


def targets(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_q_k_and_v_become_one_matmul_and_one_quantize() -> None:
    _, _, int8, call = prepared(tiny_bert(), token_batches(1))
    program, _ = export(int8, call)
    before = targets(program)
    lower(program)
    after = targets(program)
    linear, quantize = "onednn.qlinear_pointwise.default", "quantized_decomposed.quantize_per_tensor.default"
    assert before.count(linear) == 14
    assert after.count(linear) == 14 - 2 * 2
    assert after.count(quantize) == before.count(quantize) - 2 * 2
    with torch.no_grad():
        wanted, got = call(int8).logits, program.module()(**call.kwargs).logits
    # The float work in between is the same, but a value on the edge may round to the other side.
    assert (wanted - got).abs().max() < 0.1 * wanted.std()


def test_the_skip_of_a_residual_block_is_read_as_uint8() -> None:
    _, _, int8, call = prepared(small_cnn(), image_batches(1))
    program, _ = export(int8, call)
    lower(program)
    assert targets(program).count("quantized_decomposed.dequantize_per_tensor.default") == 2


class Fork(nn.Module):
    """A convolution, max pooling, two convolutions that are added, and one that reads the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right, self.after = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.stem(x)), 2)
        return self.after(torch.relu(self.left(x) + self.right(x)))


def test_a_shortcut_that_is_a_convolution_gives_uint8_and_pooling_takes_it() -> None:
    torch.manual_seed(0)
    _, _, int8, call = prepared(Fork().eval(), [torch.randn(4, 8, 8, 8)])
    program, _ = export(int8, call)
    outputs = {
        f"{name}.weight_int8": layer.output
        for name, layer in int8.named_modules()
        if isinstance(layer, Int8Conv2d) and layer.output
    }
    assert set(outputs) == {f"{name}.weight_int8" for name in ("stem", "left", "right", "after")}
    with torch.no_grad():
        wanted = call(int8)
        lower(program, outputs)
        got = program.module()(*call.args)
    assert targets(program).count("quantized_decomposed.dequantize_per_tensor.default") == 2
    assert (wanted - got).abs().max() < 0.1 * wanted.std()


def test_signature_knows_which_calls_it_was_made_for() -> None:
    ids = torch.zeros(2, 7, dtype=torch.long)
    signature = Signature.of(Inputs(kwargs={"input_ids": ids, "attention_mask": ids}), dynamic_dims)
    assert Signature.from_json(signature.to_json()) == signature
    other = torch.zeros(5, 3, dtype=torch.long)
    assert signature.matches((), {"input_ids": other, "attention_mask": other, "token_type_ids": None})
    assert not signature.matches((), {"input_ids": other})
    assert not signature.matches((other,), {"attention_mask": other})
    assert not signature.matches((), {"input_ids": other.int(), "attention_mask": other})
    assert not signature.matches((), {"input_ids": other[0], "attention_mask": other})
    image = Signature.of(Inputs((torch.zeros(2, 3, 8, 8),)), dynamic_dims)
    assert image.matches((torch.zeros(9, 3, 8, 8),), {})
    assert not image.matches((torch.zeros(9, 3, 4, 4),), {})


@needs_compiler
@pytest.mark.slow
class TestCompiledBert:
    @pytest.fixture(scope="class")
    @classmethod
    def parts(cls) -> tuple[TorchBackend, Ranges, nn.Module, CompiledModel]:
        backend, ranges, int8, call = prepared(tiny_bert(), token_batches())
        return backend, ranges, int8, compile_model(int8, call)

    @pytest.mark.parametrize(("rows", "length"), [(8, 12), (1, 12), (3, 33), (1, 1)])
    def test_agrees_with_eager_int8_at_every_shape(self, parts: Any, rows: int, length: int) -> None:
        backend, _, int8, compiled = parts
        call = backend.split(token_batches(1, rows, length)[0])[0]
        assert compiled.signature.matches(call.args, call.kwargs)
        wanted, got = backend.run(int8, call)["logits"], backend.run(compiled, call)["logits"]
        np.testing.assert_allclose(got, wanted, atol=0.1 * np.abs(wanted).max())

    def test_gives_the_same_kind_of_output(self, parts: Any) -> None:
        backend, _, int8, compiled = parts
        call = backend.split(token_batches(1)[0])[0]
        assert type(call(compiled)) is type(call(int8))
        assert compiled.config is int8.config

    def test_memory_layout_does_not_change_the_answer(self, parts: Any) -> None:
        _, _, _, compiled = parts
        inputs, _ = token_batches(1, 8, 24)[0]
        sliced = {name: value[:, :10] for name, value in inputs.items()}
        copied = {name: value[:, :10].clone() for name, value in inputs.items()}
        assert not sliced["input_ids"].is_contiguous()
        assert torch.equal(compiled(**sliced).logits, compiled(**copied).logits)

    def test_other_calls_go_to_eager_int8(self, parts: Any) -> None:
        _, _, int8, compiled = parts
        inputs, _ = token_batches(1)[0]
        with torch.no_grad():
            assert torch.equal(compiled(inputs["input_ids"]).logits, int8(inputs["input_ids"]).logits)

    def test_opened_it_runs_as_native_code_whatever_the_ids_are_kept_in(self, parts: Any) -> None:
        _, _, _, compiled = parts
        alone = CompiledModel(compiled._runner, compiled.package, compiled.signature, None)
        inputs, _ = token_batches(1)[0]
        model = open_model(alone)
        found = model.run({name: value.int().numpy() for name, value in inputs.items()})["logits"]
        assert np.array_equal(found, compiled(**inputs).logits.numpy())
        assert {port.name for port in model.inputs} == set(inputs)

    def test_saved_it_runs_in_a_fresh_process(self, parts: Any, tmp_path: Path) -> None:
        backend, _, _, compiled = parts
        metadata = backend.writer()(compiled, tmp_path)
        inputs, _ = token_batches(1)[0]
        torch.save(
            {"inputs": inputs, "wanted": compiled(**inputs).logits, "metadata": metadata},
            tmp_path / "case.pt",
        )
        code = (
            "import torch, pathlib, sys\n"
            "from octune.backends.torch import TorchBackend\n"
            "folder = pathlib.Path(sys.argv[1]); case = torch.load(folder / 'case.pt')\n"
            "model = TorchBackend.load(folder, case['metadata'], trusted=True)\n"
            "assert type(model).__name__ == 'CompiledModel', type(model)\n"
            "assert torch.equal(model(**case['inputs']).logits, case['wanted'])\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=300)


@needs_compiler
@pytest.mark.slow
def test_a_cnn_flows_in_int8_from_layer_to_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setenv("OCTUNE_COMPILE_CACHE", "off")

    backend, _, int8, call = prepared(small_cnn(), image_batches())
    counters.clear()
    compiled = compile_model(int8, call)
    matched = {name: count for name, count in counters["inductor"].items() if name.startswith("qconv")}
    assert matched.get("qconv_unary_matcher_count", 0) >= 3, matched
    assert (
        matched.get("qconv2d_binary_matcher_count", 0) + matched.get("qconv2d_binary_lower_count", 0) >= 2
    ), matched
    wanted, got = backend.run(int8, call)["output"], backend.run(compiled, call)["output"]
    assert np.abs(wanted - got).mean() < 0.1 * wanted.std()
    channels_last = Inputs((call.args[0].contiguous(memory_format=torch.channels_last),))
    np.testing.assert_array_equal(backend.run(compiled, channels_last)["output"], got)


@needs_compiler
@pytest.mark.slow
def test_one_channel_images_are_read_in_their_real_order() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    pixels = np.random.default_rng(0).normal(size=(6, 8, 8)).astype(np.float32)
    odd = torch.tensor(pixels[[5, 0, 3]][:, None])
    # contiguous to torch, whatever the stride of the single channel
    odd = odd.as_strided(odd.shape, (64, 1, 8, 1))
    assert odd.is_contiguous()
    backend, _, int8, call = prepared(model, [(odd, torch.zeros(3))])
    compiled = compile_model(int8, call)
    wanted, got = backend.run(int8, call)["output"], backend.run(compiled, call)["output"]
    np.testing.assert_allclose(got, wanted, atol=0.02 * np.abs(wanted).max())


@needs_compiler
@pytest.mark.slow
def test_the_same_program_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTUNE_COMPILE_CACHE", str(tmp_path))
    model, batches = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), [torch.randn(4, 6)]
    backend, _, int8, call = prepared(model, batches)
    first = compile_model(int8, call)

    def compiled_again(*_: Any) -> float:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr("octune.backends.torch.compiled._compile", compiled_again)
    again = compile_model(prepared(model, batches)[2], call)
    assert again.took == first.took > 0.1
    wanted, got = backend.run(first, call)["output"], backend.run(again, call)["output"]
    np.testing.assert_array_equal(got, wanted)
    with torch.no_grad():
        model[0].weight[0, 0] += 1.0
    with pytest.raises(AssertionError, match="compiled again"):
        compile_model(prepared(model, batches)[2], call)


@needs_compiler
@pytest.mark.slow
def test_fp32_compiled_answers_as_fp32_does_and_is_saved_as_what_it_is(tmp_path: Path) -> None:
    backend = TorchBackend(small_cnn(), Settings())
    call = backend.split(image_batches(1)[0])[0]
    backend.prepare(call)
    (form,) = backend.finalists(Plan({op.name: Scheme.fp32() for op in backend.ops()}), Ranges(), call)
    wanted, got = backend.run(backend.fp32_model(), call), backend.run(form.model, call)
    assert largest_change([wanted], [got]) < FLOAT_PRECISION
    metadata = backend.writer()(form.model, tmp_path)
    assert metadata["layers"] == {}
    for trusted, kind in ((True, CompiledModel), (False, ProgramModel)):
        loaded = backend.load(tmp_path, metadata, trusted=trusted)
        assert isinstance(loaded, kind)
        assert largest_change([wanted], [backend.run(loaded, call)]) < FLOAT_PRECISION


def test_programs_are_told_apart_by_all_that_the_compiler_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(4, 6)

    def digest(
        model: nn.Module, batch: torch.Tensor = batch, options: dict[str, Any] | None = None
    ) -> str | None:
        return digest_of_program(export(model, Inputs((batch,)))[0], options or {})

    known = digest(model)
    assert known is not None
    assert digest(model, batch + 1) == known  # what the example holds does not matter
    others = [digest(model, batch[:2]), digest(model, options={"freezing": True})]
    others.append(digest(nn.Sequential(model[0], nn.GELU(), model[2])))
    with torch.no_grad():
        model[2].bias[0] += 1.0
    others.append(digest(model))
    with pretending(replace(probe_machine(), features=())):
        others.append(digest(model))
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    others.append(digest(model))
    assert len({known, *others}) == 7


@pytest.mark.slow
def test_another_process_knows_the_same_program(tmp_path: Path) -> None:
    """Names of nodes and symbols are the same there, whatever Python's hashes are."""
    code = (
        "import torch\n"
        "from tests.backends.torch.test_compiled import prepared, export\n"
        "from tests.backends.torch.models import tiny_bert, token_batches\n"
        "from octune.backends.torch.digest import digest_of_program\n"
        "_, _, int8, call = prepared(tiny_bert(), token_batches(1))\n"
        "print(digest_of_program(export(int8, call)[0], {}))\n"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""


def test_a_model_that_cannot_be_exported_says_why() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if float(x.sum()) > 0 else x

    with pytest.raises(UnsupportedError, match="cannot be exported"):
        export(Branching().eval(), Inputs((torch.ones(2, 4),)))
