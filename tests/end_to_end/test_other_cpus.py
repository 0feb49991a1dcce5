"""What older CPUs would do, on the machine at hand: the contract and the sums of every backend, on the
kernels that those run.

Where the CPU can be made to look like an older one (benchmarks/older_cpu.py), all kernels are those of that
CPU. Elsewhere oneDNN, and with it PyTorch, TensorFlow and OpenVINO, uses no newer instructions than it is
told to; what looks at the CPU itself is tested on an emulated one, where there is an emulator.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octune.machine import probe_machine
from tests.scripts import load_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]  # hundreds of tests in one
ROOT = Path(__file__).parents[2]
EMULATOR = "qemu-x86_64"
BACKENDS = ("torch", "tensorflow", "onnx")
older_cpu = load_script("benchmarks/older_cpu.py")


def run(*tests: str, command: tuple[str, ...] = (), **environment: str) -> None:
    """pytest in a process of its own; shows what failed."""
    done = subprocess.run(
        [*command, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        # what is read below is what pytest prints by itself
        env={**os.environ, "PYTEST_ADDOPTS": "", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for file in {test.partition("::")[0] for test in tests}:
        assert re.search(rf"^{re.escape(file)} \w*\.", done.stdout, re.MULTILINE), f"{file}: nothing passed"


def needs(feature: str) -> None:
    if feature not in probe_machine().features:
        pytest.skip(f"this CPU has no {feature}, so it cannot run kernels for CPUs that have it")


@pytest.mark.parametrize(
    ("level", "feature", "names"),
    [("AVX2", "avx2", ("saturation", "contract")), ("AVX512_CORE", "avx512f", ("saturation",))],
    ids=["AVX2", "AVX512"],
)
def test_backends_on_older_kernels(level: str, feature: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """No sum overflows, and every backend keeps the contract; in one process, since frameworks are slow to
    import.
    """
    needs(feature)
    limit = {"ONEDNN_MAX_CPU_ISA": level}
    run(
        *(f"tests/backends/{backend}/test_{name}.py" for backend in BACKENDS for name in names),
        **(limit if older_cpu.obstacle() else older_cpu.older(level, tmp_path)),
    )


@pytest.mark.parametrize("level", ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"])
def test_a_program_sees_an_older_cpu(level: str, tmp_path: Path) -> None:
    """NumPy asks the CPU; a compiler does when it makes code for this machine; and the program still ends
    when it touches memory that is not there.
    """
    needs("avx512_vnni")
    if why := older_cpu.obstacle():
        pytest.skip(why)
    script = """if True:
        import faulthandler, json, os, subprocess, numpy as np
        faulthandler.enable()
        found = np._core._multiarray_umath.__cpu_features__
        command = ["gcc", "-march=native", "-dM", "-E", "-x", "c", os.devnull]
        made = subprocess.run(command, capture_output=True)
        told = [found[name] for name in ("AVX2", "AVX512F", "AVX512VNNI")]
        told += [f"#define __{name}__ 1".encode() in made.stdout for name in ("AVX512F", "AMX_INT8")]
        print(json.dumps(told), flush=True)
        import ctypes
        ctypes.string_at(0)
    """
    environment = {**os.environ, **older_cpu.older(level, tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    avx512 = level != "AVX2"
    assert json.loads(done.stdout) == [True, avx512, level == "AVX512_CORE_VNNI", avx512, False]
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr


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
    if not older_cpu.obstacle():
        pytest.skip("tested above, at full speed")
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {EMULATOR} (Debian's qemu-user) to look like another CPU")
    run(
        *tests,
        command=(EMULATOR, "-cpu", "EPYC-Milan"),
        ONEDNN_MAX_CPU_ISA="AVX2",
        OCTUNE_EMULATED_CPU="1",
    )
