"""What the ONNX backend does beyond the contract."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.backends.onnx.runtimes import RUNTIMES
from octune.calibration import Ranges
from octune.errors import DataError, UnsupportedError
from octune.harm import probe
from octune.int8 import Limit
from octune.machine import Machine, pretending
from octune.plan import Plan, Scheme
from octune.repair import SMOOTH
from tests.backends.contract import calibrated, int8_plan, observed
from tests.backends.onnx.graphs import Chain, inputs
from tests.backends.onnx.models import arrays, bert, cnn
from tests.backends.onnx.outliers import cnn_case, transformer_case
from tests.backends.torch.models import image_batches, token_batches
from tests.machines import AVX2, VNNI
from tests.pairs import largest_pairs


@pytest.fixture(scope="module")
def tokens() -> list[Any]:
    return arrays(token_batches())


@pytest.fixture(scope="module")
def backend() -> OnnxBackend:
    return OnnxBackend(bert(), Settings(threads=2))


@pytest.fixture(scope="module")
def ranges(backend: OnnxBackend, tokens: list[Any]) -> Ranges:
    return calibrated(backend, tokens)


def kinds(model: Any) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.proto.graph.node)


def test_all_eight_products_of_a_layer_are_ops(backend: OnnxBackend) -> None:
    layer = [op for op in backend.ops() if "/layer.0/" in op.name]
    assert len(layer) == 8
    assert all(op.can("int8") for op in layer)
    assert sum(op.kind == "attention" for op in layer) == 2


def test_readers_of_one_tensor_share_its_quantization(backend: OnnxBackend, ranges: Ranges) -> None:
    names = [f"/bert/encoder/layer.0/attention/self/{part}/MatMul" for part in ("query", "key", "value")]
    model = backend.apply(Plan({name: Scheme.int8() for name in names}), ranges)
    assert kinds(model)["QuantizeLinear"] == 1
    mixed = Plan(
        {
            names[0]: Scheme.int8(),
            names[1]: Scheme.int8(range_method="percentile"),
            names[2]: Scheme.int8("dynamic"),
        }
    )
    assert kinds(backend.apply(mixed, ranges)) >= Counter(
        {"QuantizeLinear": 2, "DynamicQuantizeLinear": 1, "MatMulInteger": 1}
    )


def test_padding_is_left_out_of_ranges(backend: OnnxBackend, tokens: list[Any]) -> None:
    name = "/bert/encoder/layer.0/intermediate/dense/MatMul"
    seen: dict[str, int] = {}

    def visit(op: str, array: Any, *, shape: tuple[int, ...], channel_axis: int = -1) -> None:
        seen[op] = seen.get(op, 0) + (0 if array is None else array.size // shape[-1])

    backend.observe([backend.split(tokens[0])[0]], visit)
    assert seen[name] == tokens[0][0]["attention_mask"].sum()


def test_ranges_do_not_depend_on_how_a_batch_is_cut(
    backend: OnnxBackend, tokens: list[Any], ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    import octune.backends.onnx.observe as observe

    monkeypatch.setattr(observe, "PART_BYTES", 1)
    again = observed(backend, tokens)
    assert set(again) == set(ranges)
    for name in ranges:
        assert again[name].low == pytest.approx(ranges[name].low, rel=1e-4, abs=1e-6)
        assert again[name].high == pytest.approx(ranges[name].high, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_harm_without_models_agrees_with_harm_of_models(name: str) -> None:
    case = cnn_case() if name == "cnn" else transformer_case()
    backend = OnnxBackend(case.model, Settings(threads=2))
    feeds = [backend.split(batch)[0] for batch in case.batches()]
    ranges = calibrated(backend, case.batches())
    # A convolution whose output feeds another's quantized input is judged without rounding that output;
    # alone, it rounds it.
    candidates = {
        op.name: [s for s in op.schemes if not s.is_float][:3:2] for op in backend.ops() if op.kind != "conv"
    }
    fast, slow = backend.harm(candidates, ranges, feeds[:1]), probe(backend, candidates, ranges, feeds[:1])
    assert set(fast) == set(slow)
    ratios = np.abs([np.log10(fast[key] / slow[key]) for key in slow if slow[key] > 1e-7])
    # The model was trained here and comes out differently on every CPU, so that no bound for its worst op
    # holds everywhere.
    assert np.median(ratios) < 0.4
    # An error large enough to saturate what follows is only known roughly.
    assert np.quantile(ratios, 0.9) < 1.3


def test_rounding_between_convolutions_counts_for_the_reader_whose_smoothing_repairs_it() -> None:
    case = cnn_case()
    backend = OnnxBackend(case.model, Settings(threads=2))
    ranges, feed = calibrated(backend, case.batches()), backend.split(case.batches()[0])[0]
    plain, smooth = Scheme.int8(), Scheme.int8(repairs=(SMOOTH.name,))
    harm = backend.harm(
        {op.name: [plain, smooth] for op in backend.ops() if op.kind == "conv"}, ranges, [feed]
    )
    assert harm["/convs.0/Conv", plain] < 1e-3 < harm["/convs.1/Conv", plain]
    assert harm["/convs.1/Conv", smooth] < 0.01 * harm["/convs.1/Conv", plain]


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_smoothing_goes_into_what_comes_before(name: str) -> None:
    case = cnn_case() if name == "cnn" else transformer_case()
    backend = OnnxBackend(case.model, Settings(threads=2))
    ranges = calibrated(backend, case.batches())
    plain = int8_plan(backend, ranges)
    can = {op.name for op in backend.ops() if any(SMOOTH.name in s.repairs for s in op.schemes)}
    smoothed = plain.with_({op: Scheme.int8(repairs=(SMOOTH.name,)) for op in can})
    model = backend.apply(smoothed, ranges)
    feed = backend.split(case.images[1200:])[0]
    wanted = backend.run(backend.fp32_model(), feed)["logits"]
    errors = [
        float(np.square(backend.run(m, feed)["logits"] - wanted).mean())
        for m in (backend.apply(plain, ranges), model)
    ]
    assert errors[1] < 0.05 * errors[0]
    added = kinds(model)["Mul"] - kinds(backend.apply(plain, ranges))["Mul"]
    # What reads an input of the model, or what is no op's output alone, needs a node of its own: the image;
    # attention's output.
    assert added == (1 if name == "cnn" else 5)


def test_a_smoothed_op_behind_a_float_one(tmp_path: Path) -> None:
    """The factors go into float weights, too."""
    case = cnn_case()
    backend = OnnxBackend(case.model, Settings(threads=2))
    ranges, feed = calibrated(backend, case.batches()), backend.split(case.images[:50])[0]
    wanted = backend.run(backend.fp32_model(), feed)["logits"]
    for op in ("/convs.1/Conv", "/hidden/Gemm", "/head/Gemm"):
        got = backend.run(backend.apply(Plan({op: Scheme.int8(repairs=(SMOOTH.name,))}), ranges), feed)[
            "logits"
        ]
        assert np.abs(got - wanted).mean() < 0.05 * np.abs(wanted).mean()


def test_smoothing_follows_the_ranges_that_a_plan_is_applied_with() -> None:
    """What is remembered for one calibration is not used for another."""
    backend = OnnxBackend(Chain().add("plain", "a").add("plain", "b").model(), Settings(threads=1))
    plan = Plan({name: Scheme.int8(repairs=(SMOOTH.name,)) for name in ("a", "b")})
    x = inputs(16)
    wide = x * np.linspace(1, 50, x.shape[1], dtype=np.float32)
    feed, (first, second) = backend.split(x)[0], (calibrated(backend, [batch]) for batch in (x, wide))

    def answer(ranges: Ranges) -> Any:
        return next(iter(backend.run(backend.apply(plan, ranges), feed).values()))

    before, between, after = (answer(ranges) for ranges in (first, second, first))
    assert np.array_equal(before, after)
    assert not np.array_equal(before, between)


def test_int8_flows_through_a_residual_net() -> None:
    """Convolutions, additions and pooling all run on integers: ONNX Runtime leaves no float convolution and
    no float addition.
    """
    subject = OnnxBackend(cnn(), Settings(threads=1))
    ranges = calibrated(subject, arrays(image_batches()))
    fused = _optimized(subject.apply(int8_plan(subject, ranges), ranges).graph.whole())
    assert (fused["QLinearConv"], fused["QLinearAdd"], fused["Conv"]) == (6, 2, 0)


@pytest.mark.parametrize("way", ["gemm", "biased"])
def test_linear_layers_on_matrices_run_in_int8(way: str) -> None:
    """ONNX Runtime fuses a product and a sum into a Gemm; with a float bias that Gemm would be float."""
    chain = Chain()
    for index in range(2):
        chain.add("gemm" if way == "gemm" else "plain", f"op{index}", relu=False)
        if way == "biased":
            chain.stored[f"bias{index}"] = np.linspace(-1, 1, chain.width, dtype=np.float32)
            chain.nodes.append(onnx.helper.make_node("Add", [f"bias{index}", chain.last], [f"sum{index}"]))
            chain.last = f"sum{index}"
    backend = OnnxBackend(chain.model(), Settings(threads=1))
    ranges, feed = calibrated(backend, [inputs()]), backend.split(inputs())[0]
    for repairs in ((), ("bias",), ("smooth",), ("smooth", "bias")):
        model = backend.apply(Plan({op.name: Scheme.int8(repairs=repairs) for op in backend.ops()}), ranges)
        fused = _optimized(model.graph.whole())
        assert (fused["QGemm"], fused["Gemm"], fused["MatMul"]) == (2, 0, 0)
        wanted, got = (next(iter(backend.run(m, feed).values())) for m in (backend.fp32_model(), model))
        assert np.abs(got - wanted).mean() < 0.05 * np.abs(wanted).mean()


def test_smoothing_leaves_what_runtimes_fuse(backend: OnnxBackend, ranges: Ranges) -> None:
    can = {op.name for op in backend.ops() if any(SMOOTH.name in s.repairs for s in op.schemes)}
    model = backend.apply(Plan({op: Scheme.int8(repairs=(SMOOTH.name,)) for op in can}), ranges)
    fused = _optimized(model.graph.whole())
    assert fused["BiasGelu"] == 2
    assert fused["Erf"] == 0


def _optimized(proto: Any) -> Counter[str]:
    """The nodes that ONNX Runtime makes of a graph."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


# -- runtimes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_openvino_runs_the_same_plan(name: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    batches = arrays(token_batches() if name == "bert" else image_batches())
    backend = OnnxBackend(bert() if name == "bert" else cnn(), Settings(threads=2))
    ranges, feed = calibrated(backend, batches), backend.split(batches[0])[0]
    plan = int8_plan(backend, ranges)
    (finalist,) = backend.finalists(plan, ranges, feed)
    assert finalist.form == finalist.model.runtime == "openvino"
    fp32, got = backend.run(backend.fp32_model(), feed)["logits"], backend.run(finalist.model, feed)["logits"]
    assert not np.array_equal(fp32, got)
    assert np.abs(fp32 - got).mean() < 0.25 * np.abs(fp32 - fp32.mean()).mean()
    assert [p.name for p in finalist.model.get_inputs()] == [
        p.name for p in backend.fp32_model().get_inputs()
    ]
    with pytest.raises(ValueError, match="no input 'nonsense'"):
        finalist.model.run(None, {"nonsense": fp32})
    metadata = backend.writer()(finalist.model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "openvino.xml", "openvino.bin"}
    assert np.array_equal(backend.run(backend.load(tmp_path, metadata), feed)["logits"], got)
    # Without OpenVINO the same folder runs on ONNX Runtime.
    assert (
        backend.run(backend.load(tmp_path, metadata | {"runtime": "onnxruntime"}), feed)["logits"].shape
        == got.shape
    )


def test_openvino_gets_signed_activations(backend: OnnxBackend, ranges: Ranges) -> None:
    plan = int8_plan(backend, ranges)
    zeros = {
        name: [
            array.dtype
            for key, array in backend._graph(plan, ranges, runtime).tensors.items()
            if key.endswith("/zero")
        ]
        for name, runtime in zip(("ort", "openvino"), RUNTIMES, strict=True)
    }
    assert zeros["ort"].count(np.dtype(np.uint8)) > zeros["ort"].count(np.dtype(np.int8)) == 4
    assert zeros["openvino"].count(np.dtype(np.int8)) > len(zeros["openvino"]) / 2


def test_without_openvino_there_is_a_note(
    backend: OnnxBackend, ranges: Ranges, tokens: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUNTIMES[1], "package", "not_installed_here")
    assert list(backend.finalists(int8_plan(backend, ranges), ranges, backend.split(tokens[0])[0])) == []
    assert any("OpenVINO is not installed" in note for note in backend.notes)


def test_openvino_is_left_out_where_only_native_forms_are_asked_for(tokens: list[Any]) -> None:
    backend = OnnxBackend(bert(), Settings(forms=("native",)))
    assert list(backend.finalists(Plan(), Ranges(), backend.split(tokens[0])[0])) == []
    assert not any("OpenVINO" in note for note in backend.notes)


def test_a_saved_model_runs_in_a_process_of_its_own(
    backend: OnnxBackend, ranges: Ranges, tokens: list[Any], tmp_path: Path
) -> None:
    plan = int8_plan(backend, ranges)
    model = backend.apply(plan, ranges)
    backend.writer()(model, tmp_path)
    feed = backend.split(tokens[0])[0]
    np.savez(tmp_path / "feed.npz", **feed.kwargs)
    code = (
        "import numpy as np, onnxruntime as ort; f = dict(np.load('feed.npz'));"
        "np.save('out.npy', ort.InferenceSession('model.onnx', providers=['CPUExecutionProvider']).run(None, "
        "f)[0])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert np.array_equal(np.load(tmp_path / "out.npy"), backend.run(model, feed)["logits"])


def test_results_are_stamped(backend: OnnxBackend) -> None:
    stamp = backend.environment()
    assert stamp["framework"] == "onnx"
    assert {"onnx", "onnxruntime", "threads", "weights"} <= set(stamp)


# -- the guard against overflow ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "portable", "limit"),
    [
        (AVX2, True, Limit.PAIRS),
        (AVX2, False, Limit.PAIRS),
        (VNNI, True, Limit.PAIRS),
        (VNNI, False, Limit.NONE),
    ],
)
def test_weights_use_all_8_bits_only_where_asked_to_and_where_sums_are_exact(
    machine: Machine, portable: bool, limit: Limit, tokens: list[Any]
) -> None:
    with pretending(machine):
        backend = OnnxBackend(bert(), Settings(portable=portable))
    assert backend.environment()["weights"] == limit.value
    ranges = calibrated(backend, tokens)
    for mode in ("static", "dynamic"):
        schemes = {
            op.name: next((s for s in op.schemes if s.mode == mode), op.schemes[0]) for op in backend.ops()
        }
        tensors = backend.apply(Plan(schemes), ranges).graph.tensors
        weights = [
            array
            for name, array in tensors.items()
            if name.endswith("/weight_int8") and "embeddings" not in name
        ]
        assert weights
        pairs = max(largest_pairs(weight.T).max() for weight in weights)
        assert pairs <= 128 if limit is Limit.PAIRS else pairs > 128


# -- data ----------------------------------------------------------------------------------------------------


def test_forms_of_batches(backend: OnnxBackend) -> None:
    ids = np.ones((3, 5), np.int32)
    named = {"input_ids": ids, "attention_mask": ids, "unused": ids}
    for batch, label in (
        (named, None),
        ({**named, "labels": 7}, 7),
        ((named, 7), 7),
        (((ids, ids), 7), 7),
        ((ids, ids), None),
        ((ids, ids, 7), 7),
    ):
        feed, got = backend.split(batch)
        assert got == label
        assert {name: array.dtype for name, array in feed.kwargs.items()} == {
            "input_ids": np.int64,
            "attention_mask": np.int64,
        }
        assert backend.batch_size(feed) == 3
        assert backend.batch_size(backend.resized(feed, 7)) == 7


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"input_ids": np.ones((1, 2))}, "attention_mask is missing"),
        ((), "empty tuple"),
        ((1, 2, 3, 4), "Tried as inputs: 4 given, 2 expected; as inputs and a label at the end: 3 given"),
        (np.ones((1, 2)), "as one array: 1 given, 2 expected"),
        ({"input_ids": ["some text"], "attention_mask": [1]}, "tokenize text first"),
    ],
)
def test_batches_that_cannot_be_used(backend: OnnxBackend, batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        backend.split(batch)


def test_data_that_the_model_cannot_run_on_says_so(backend: OnnxBackend) -> None:
    feed = backend.split({"input_ids": np.full((1, 4), 10**6), "attention_mask": np.ones((1, 4))})[0]
    with pytest.raises(DataError, match="cannot be run"):
        backend.run(backend.fp32_model(), feed)


def test_a_fixed_batch_size_is_kept() -> None:
    model = Chain().add("plain", "a").add("gemm", "b").model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    backend = OnnxBackend(model, Settings())
    feed = backend.split(inputs(4))[0]
    assert backend.batch_size(backend.resized(feed, 2)) == 4
    ranges = calibrated(backend, [inputs(4)])
    harm = backend.harm({"a": [Scheme.int8()]}, ranges, [feed])
    assert harm["a", Scheme.int8()] > 0


def test_the_first_call_is_captured(backend: OnnxBackend, tokens: list[Any]) -> None:
    model = backend.fp32_model()
    with backend.capture(model) as seen:
        model.run(["logits"], backend.split(tokens[1])[0].kwargs)
        model.run(None, backend.split(tokens[0])[0].kwargs)
    assert np.array_equal(seen[0].kwargs["input_ids"], tokens[1][0]["input_ids"])


def test_names_of_other_tensors_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the model has logits"):
        OnnxBackend(cnn(), Settings(outputs=("something",)))
