"""ONNX contenders: fp32 on ONNX Runtime and OpenVINO, each runtime's own int8, and Octune's plan on both.

    preparation = prepare("bert-base", quick=False, threads=2)
    built = CONTENDERS[0].build(preparation)

All start from the same ``.onnx`` file, exported from PyTorch, and are calibrated on the same batches.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import torch
from bench_models import SUBJECTS, tensors
from bench_octune import Calibrated, calibrated
from bench_speed import Built, Contender
from bench_subject import Inputs, Subject

from octune.backends.onnx import OnnxBackend
from octune.backends.terms import Settings
from octune.backends.torch.to_onnx import to_onnx

__all__ = ["COLUMNS", "CONTENDERS", "Preparation", "export", "prepare", "session_runner"]

BASELINE, OPENVINO = "ORT fp32", "OpenVINO fp32"
DYNAMIC, STATIC, NNCF = "ORT quantize_dynamic", "ORT quantize_static", "OpenVINO nncf"
OCTUNE_ORT, OCTUNE_OPENVINO = "octune on ORT", "octune on OpenVINO"


@dataclass
class Preparation:
    """A model on disk, data to calibrate on, and what several contenders share."""

    file: Path
    calibration: list[Inputs]
    is_text: bool
    threads: int
    subject: Subject | None = None
    look: bool = False  # whether Octune chooses ranges by the harm they do
    keeps: Any = None  # the folder of the file, which is removed with this object

    @cached_property
    def octune(self) -> Calibrated:
        return calibrated(
            OnnxBackend(self.file, Settings(threads=self.threads)), self.calibration, look=self.look
        )

    @property
    def beside(self) -> Path:
        """A new file beside the model, for what is made from it."""
        return Path(tempfile.mkdtemp(dir=self.file.parent)) / "model.onnx"


def prepare(name: str, quick: bool, threads: int) -> Preparation:
    torch.set_num_threads(threads)
    subject = SUBJECTS[name](quick)
    return export(subject.model, subject.calibration, subject.is_text, threads, subject)


def export(
    model: Any, calibration: list[Inputs], is_text: bool, threads: int, subject: Subject | None = None
) -> Preparation:
    """A PyTorch model as an ``.onnx`` file, and data that it takes. Without a subject it is scored, not
    timed, and Octune chooses ranges by harm.
    """
    folder = tempfile.TemporaryDirectory(prefix="octune-bench-")
    file = Path(folder.name) / "model.onnx"
    onnx.save(to_onnx(model, tensors(calibration[0])), str(file))
    return Preparation(file, calibration, is_text, threads, subject, look=subject is None, keeps=folder)


# -- runtimes ------------------------------------------------------------------------------------------------


def _ort(file: Path, threads: int) -> Callable[[Inputs], Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    taken = [item.name for item in session.get_inputs()]
    return lambda inputs: session.run(["logits"], {name: inputs[name] for name in taken})[0]


def _openvino(model: Any, threads: int) -> Callable[[Inputs], Any]:
    """With the settings that Octune uses for OpenVINO."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(model, "CPU", {**settings, "ENABLE_CPU_PINNING": False})
    request = compiled.create_infer_request()
    taken = {name for port in compiled.inputs for name in port.names}

    def run(inputs: Inputs) -> Any:
        request.infer({name: array for name, array in inputs.items() if name in taken}, share_inputs=True)
        return request.get_tensor("logits").data.copy()

    return run


def _timed(
    make: Callable[[Preparation], tuple[Callable[[Inputs], Any], list[str]]],
) -> Callable[[Preparation], Built]:
    """Making a contender, until it has answered for the first time."""

    def build(preparation: Preparation) -> Built:
        begun = time.perf_counter()
        run, remarks = make(preparation)
        run(preparation.calibration[0])
        return Built(run, time.perf_counter() - begun, remarks)

    return build


# -- contenders ----------------------------------------------------------------------------------------------


def _ort_fp32(preparation: Preparation) -> Built:
    return Built(_ort(preparation.file, preparation.threads))


def _openvino_fp32(preparation: Preparation) -> tuple[Callable[[Inputs], Any], list[str]]:
    return _openvino(str(preparation.file), preparation.threads), []


def _quantize_dynamic(preparation: Preparation) -> tuple[Callable[[Inputs], Any], list[str]]:
    """Weights signed and per channel: the form that is fast here."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = preparation.beside
    with _silent():
        quantize_dynamic(_preprocessed(preparation), made, weight_type=QuantType.QInt8, per_channel=True)
    return _ort(made, preparation.threads), [_ops(made)]


def _quantize_static(preparation: Preparation) -> tuple[Callable[[Inputs], Any], list[str]]:
    """Q/DQ, unsigned activations and signed weights per channel: its documentation's advice for CPUs with
    VNNI, for all op types that it supports.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    source, made = _preprocessed(preparation), preparation.beside
    taken = {item.name for item in onnx.load(str(source), load_external_data=False).graph.input}
    batches = iter(
        [{name: array for name, array in batch.items() if name in taken} for batch in preparation.calibration]
    )

    class Reader(CalibrationDataReader):
        def get_next(self) -> Inputs | None:
            return next(batches, None)

    with _silent():
        quantize_static(
            source,
            made,
            Reader(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    return _ort(made, preparation.threads), [_ops(made)]


def _preprocessed(preparation: Preparation) -> Path:
    """Shapes inferred and the graph optimized, as onnxruntime asks for before its quantizers are used."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    made = preparation.beside
    with _silent():
        try:
            quant_pre_process(preparation.file, made, auto_merge=True)
        # It raises a bare Exception if it cannot infer symbolic shapes; the rest works without them.
        except Exception as error:
            if "symbolic shape" not in str(error):
                raise
            quant_pre_process(preparation.file, made, skip_symbolic_shape=True)
    return made


def _nncf(preparation: Preparation) -> tuple[Callable[[Inputs], Any], list[str]]:
    import nncf
    import openvino

    model = openvino.Core().read_model(str(preparation.file))
    taken = {name for port in model.inputs for name in port.names}
    batches = [
        {name: array for name, array in batch.items() if name in taken} for batch in preparation.calibration
    ]
    kind = {"model_type": nncf.ModelType.TRANSFORMER} if preparation.is_text else {}
    with _silent():
        made = nncf.quantize(model, nncf.Dataset(batches), subset_size=len(batches), **kind)
    kinds = Counter(op.get_type_name() for op in made.get_ops())
    return _openvino(made, preparation.threads), [f"{kinds['FakeQuantize']} FakeQuantize"]


def _octune_ort(preparation: Preparation) -> tuple[Callable[[Inputs], Any], list[str]]:
    backend, ranges, plan = preparation.octune
    return session_runner(backend.apply(plan, ranges)), preparation.octune.remarks


def _octune_openvino(preparation: Preparation) -> tuple[Callable[[Inputs], Any], list[str]]:
    backend, ranges, plan = preparation.octune
    example, _ = backend.split(preparation.calibration[0])
    return session_runner(
        next(form.model for form in backend.finalists(plan, ranges, example) if form.form == "openvino")
    ), []


def session_runner(model: Any) -> Callable[[Inputs], Any]:
    taken = [item.name for item in model.get_inputs()]
    return lambda inputs: model.run(["logits"], {name: inputs[name] for name in taken})[0]


def _ops(file: Path) -> str:
    kinds: Iterable[str] = (node.op_type for node in onnx.load(str(file)).graph.node)
    return ", ".join(
        f"{count} {kind}"
        for kind, count in Counter(kinds).most_common()
        if "inear" in kind or "MatMul" in kind
    )


@contextlib.contextmanager
def _silent() -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


CONTENDERS = (
    Contender(BASELINE, _ort_fp32, exact=True),
    Contender(
        OPENVINO, _timed(_openvino_fp32), exact=True, needs=("openvino",), install="pip install openvino"
    ),
    Contender(DYNAMIC, _timed(_quantize_dynamic)),
    Contender(STATIC, _timed(_quantize_static)),
    Contender(NNCF, _timed(_nncf), needs=("openvino", "nncf"), install="pip install openvino nncf"),
    Contender(OCTUNE_ORT, _timed(_octune_ort)),
    Contender(OCTUNE_OPENVINO, _timed(_octune_openvino), needs=("openvino",), install="pip install openvino"),
)
COLUMNS = (BASELINE, DYNAMIC, STATIC, OCTUNE_ORT, OPENVINO, NNCF, OCTUNE_OPENVINO)
