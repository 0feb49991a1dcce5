"""What older CPUs would do, on the machine at hand: the contract and the sums of every backend, on the
kernels that those run.

oneDNN, and with it PyTorch, TensorFlow and OpenVINO, uses no newer instructions than it is told to. ONNX
Runtime's kernels cannot be told; they are tested on an emulated CPU, where there is an emulator.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octune.machine import probe_machine

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EMULATOR = "qemu-x86_64"
OLDER = {"AVX2": "avx2", "AVX512_CORE": "avx512f"}


def run(*tests: str, command: tuple[str, ...] = (), **environment: str) -> None:
    """pytest in a process of its own; shows what failed."""
    done = subprocess.run(
        [*command, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def needs(feature: str) -> None:
    if feature not in probe_machine().features:
        pytest.skip(f"this CPU has no {feature}, so it cannot run kernels for CPUs that have it")


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "onnx"])
@pytest.mark.parametrize("level", OLDER)
def test_no_sum_overflows_on_older_kernels(level: str, backend: str) -> None:
    needs(OLDER[level])
    run(f"tests/backends/{backend}/test_saturation.py", ONEDNN_MAX_CPU_ISA=level)


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "onnx"])
def test_backends_keep_the_contract_on_older_kernels(backend: str) -> None:
    needs("avx2")
    run(f"tests/backends/{backend}/test_contract.py", ONEDNN_MAX_CPU_ISA="AVX2")


@pytest.mark.parametrize(
    "tests",
    [
        (
            "tests/backends/onnx/test_saturation.py::TestOnnxRuntime",
            "tests/backends/onnx/test_saturation.py::test_products_of_two_activations_do_not_overflow",
            "tests/backends/onnx/test_saturation.py::test_sums_of_an_lstm_do_not_overflow",
        ),
        ("tests/backends/torch/test_saturation.py::TestRecurrent",),
    ],
    ids=["ONNX Runtime", "PyTorch, recurrent layers"],
)
def test_no_sum_overflows_on_an_emulated_cpu(tests: tuple[str, ...]) -> None:
    """In kernels that look at the CPU themselves, and cannot be told to be older ones."""
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {EMULATOR} (Debian's qemu-user) to look like another CPU")
    run(
        *tests,
        command=(EMULATOR, "-cpu", "EPYC-Milan"),
        ONEDNN_MAX_CPU_ISA="AVX2",
        OCTUNE_EMULATED_CPU="1",
    )
