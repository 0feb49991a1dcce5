"""PyTorch contenders: fp32 as it is and compiled, torchao's PT2E int8, and Octune's two forms of the same
plan.

The order matters: importing torchao's quantizer adds passes to the compiler of the whole process, so Octune's
compiled form is made before that, as it would be where torchao is not installed.
"""

from __future__ import annotations

import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from bench_models import SUBJECTS, tensors
from bench_octune import Calibrated, calibrated
from bench_speed import Built, Contender
from bench_subject import Inputs, Subject

from octune.backends.terms import Settings
from octune.backends.torch import TorchBackend

__all__ = ["COLUMNS", "CONTENDERS", "prepare"]

BASELINE = "torch eager fp32"


@dataclass
class Preparation:
    """One subject, and what several contenders share: the calibrated backend and its plan."""

    subject: Subject
    threads: int

    @property
    def calibration(self) -> list[dict[str, torch.Tensor]]:
        return [tensors(batch) for batch in self.subject.calibration]

    @cached_property
    def octune(self) -> Calibrated:
        return calibrated(TorchBackend(self.subject.model, Settings(threads=self.threads)), self.calibration)

    def visit_shapes(self, run: Callable[[Inputs], Any]) -> None:
        """Call the model on every shape that will be timed, so that all compiling is done."""
        for shape in self.subject.shapes:
            run(self.subject.inputs(shape))


def prepare(name: str, quick: bool, threads: int) -> Preparation:
    torch.set_num_threads(threads)
    return Preparation(SUBJECTS[name](quick), threads)


def _runner(model: Callable[..., Any]) -> Callable[[Inputs], Any]:
    def run(inputs: Inputs) -> Any:
        with torch.inference_mode():
            return model(**tensors(inputs)).logits

    return run


def _eager(preparation: Preparation) -> Built:
    return Built(_runner(preparation.subject.model))


def _octune_eager(preparation: Preparation) -> Built:
    begun = time.perf_counter()
    backend, ranges, plan = preparation.octune
    model = backend.apply(plan, ranges)
    return Built(_runner(model), time.perf_counter() - begun, preparation.octune.remarks)


def _octune_compiled(preparation: Preparation) -> Built:
    backend, ranges, plan = preparation.octune
    example, _ = backend.split(preparation.calibration[0])
    begun = time.perf_counter()
    finalist = next(backend.finalists(plan, ranges, example))
    model = finalist.model
    run = _runner(model)
    preparation.visit_shapes(run)
    return Built(run, time.perf_counter() - begun, [*_matches(), *_generated(model.package)])


def _compiled(preparation: Preparation) -> Built:
    """torch.compile of the fp32 model. Text with free sizes; images once for each size, which suits it
    better.
    """
    torch._dynamo.reset()
    run = _runner(torch.compile(preparation.subject.model, dynamic=preparation.subject.is_text))
    begun = time.perf_counter()
    preparation.visit_shapes(run)
    return Built(run, time.perf_counter() - begun)


def _pt2e(preparation: Preparation) -> Built:
    """torchao's documented way to static int8 on x86, with its default configuration.

    Images are compiled once for each size: with a free batch size its convolutions would repack their weights
    at every call.
    """
    import torch._inductor.config as inductor
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    begun = time.perf_counter()
    subject, batches = preparation.subject, preparation.calibration
    dims = {
        axis: torch.export.Dim(name, min=low, max=high) for axis, (name, low, high) in subject.free.items()
    }
    with torch.no_grad():
        shapes = dict.fromkeys(batches[0], dims)
        exported = torch.export.export(
            subject.model, (), batches[0], dynamic_shapes=shapes, strict=False
        ).module()
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(exported, quantizer)
        for batch in batches:
            prepared(**batch)
        converted = convert_pt2e(prepared)
    torch._dynamo.reset()
    with inductor.patch(freezing=True):
        run = _runner(torch.compile(converted, dynamic=subject.is_text))
        preparation.visit_shapes(run)
    return Built(run, time.perf_counter() - begun, _matches())


def _matches() -> list[str]:
    """What the compiler reports to have fused since the last call."""
    counters = torch._dynamo.utils.counters["inductor"]
    found = {
        name: count for name, count in counters.items() if name.startswith("q") and name.endswith("_count")
    }
    counters.clear()
    return [f"{name.removesuffix('_count')}: {count}" for name, count in sorted(found.items())]


def _generated(package: Any) -> list[str]:
    """Reads in the generated code what the int8 ops output: uint8, which the next one takes as it is, or
    float.
    """
    with zipfile.ZipFile(package) as archive:
        source = "\n".join(
            archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith((".wrapper.cpp", ".kernel.cpp"))
        )
    dtypes = dict(re.findall(r"int32_t (var_\d+) = cached_torch_dtype_(\w+);", source))
    calls: Counter[str] = Counter()
    for kind, binary, arguments in re.findall(
        r"aoti_torch_cpu__q(conv|linear)(?:2d)?_pointwise(_binary)?_tensor\((.*)\);", source
    ):
        given = [dtypes[name] for name in re.findall(r"&(var_\d+)", arguments) if name in dtypes]
        calls[f"int8 {kind}{' + add' if binary else ''} -> {given[0] if given else 'float32'}"] += 1
    passes = len(set(re.findall(r"\bcpp_fused(?:_clone)?_quantize_per_tensor(?:_zeros_like)?_\d+", source)))
    return [
        *(f"{name}: {count}" for name, count in sorted(calls.items())),
        f"quantizes with a pass over memory of their own: {passes}",
    ]


CONTENDERS = (
    Contender(BASELINE, _eager, exact=True),
    Contender("octune int8 eager", _octune_eager),
    Contender("octune int8 compiled", _octune_compiled),
    Contender("torch.compile fp32", _compiled, exact=True),
    Contender("torchao PT2E int8", _pt2e, needs=("torchao",), install="pip install torchao"),
)
COLUMNS = (BASELINE, "torch.compile fp32", "torchao PT2E int8", "octune int8 eager", "octune int8 compiled")
