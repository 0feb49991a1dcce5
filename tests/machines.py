"""CPUs that a test can pretend to run on, and what skips a test where the real one has less than it needs.

with pretending(AVX2): ...                                          # as if this CPU were an older one
@pytest.mark.parametrize("scheme", runnable([INT8, BF16]))          # bf16 is skipped, with the reason, where
it would be emulated
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from octune.machine import Machine, probe_machine
from octune.plan import Scheme

AVX2 = Machine("a CPU with AVX2", "x86_64", 2, ("sse4_1", "avx", "avx2"), None)
VNNI = Machine("a CPU with VNNI", "x86_64", 2, (*AVX2.features, "avx512f", "avx512_vnni"), None)
AMX = Machine(
    "a CPU with AMX", "x86_64", 2, (*VNNI.features, "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"), None
)
ARM = Machine("an ARM CPU", "aarch64", 2, ("asimddp", "i8mm", "bf16"), None)

NO_BF16 = f"this CPU ({probe_machine().generation}) has no bf16 instructions, so bf16 is not offered"
needs_bf16 = pytest.mark.skipif(not probe_machine().bf16, reason=NO_BF16)


def kernels_add_exactly() -> bool:
    """Of kernels that look at the CPU themselves, whatever oneDNN is told. They may be shown another CPU than
    the file is about (tests/end_to_end/test_other_cpus.py).
    """
    return "vnni" in Path("/proc/cpuinfo").read_text() and "OCTUNE_EMULATED_CPU" not in os.environ


def runnable(schemes: Iterable[Scheme]) -> list[Any]:
    """Schemes as parameters of a test; those that this CPU would only emulate are skipped."""
    return [
        pytest.param(scheme, id=str(scheme), marks=needs_bf16 if scheme.dtype == "bf16" else ())
        for scheme in schemes
    ]
