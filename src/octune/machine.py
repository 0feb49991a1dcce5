"""What this machine can do, and what follows from it. No other module of Octune knows the name of an
instruction set.

    machine = probe_machine()
    machine.exact_int8      # whether sums of 8-bit products are exact, whatever the numbers
    machine.bf16            # whether bfloat16 is computed, not emulated
    machine.refused         # why int8 is not offered on this kind of CPU at all; empty on x86-64

A CPU without an int8 dot product (VNNI, AMX) multiplies uint8 by int8 and adds two neighbouring products in
16 bits, where 255 * 127 * 2 does not fit. :mod:`octune.int8` keeps weights small enough for that; a model
with larger ones is exact only where ``exact_int8`` holds.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Machine", "pretending", "probe_machine"]

# The words of /proc/cpuinfo that kernels look for, from the oldest to the newest.
X86 = (
    "sse4_1",
    "avx",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
)
ARM = ("asimddp", "i8mm", "bf16")
EXACT = {"avx_vnni", "avx512_vnni", "amx_int8"}
BF16 = {"avx512_bf16", "amx_bf16"}

# oneDNN runs as if the CPU had nothing newer when this is set; so do PyTorch, TensorFlow and OpenVINO, which
# use it.
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_AVX2, _VNNI = ("sse4_1", "avx", "avx2"), ("sse4_1", "avx", "avx2", "avx512f", "avx512_vnni")
LEVELS = {
    "SSE41": _AVX2[:1],
    "AVX": _AVX2[:2],
    "AVX2": _AVX2,
    "AVX2_VNNI": (*_AVX2, "avx_vnni"),
    "AVX2_VNNI_2": (*_AVX2, "avx_vnni"),
    "AVX512_CORE": _VNNI[:-1],
    "AVX512_CORE_VNNI": _VNNI,
    "AVX512_CORE_BF16": (*_VNNI, "avx512_bf16"),
    # All that is newer has everything that matters here but AMX. A name that is not here is one of those with
    # AMX, or none that oneDNN knows: no limit.
    **dict.fromkeys(
        ("AVX512_CORE_FP16", "AVX10_1_512", "AVX10_2", "AVX10_2_512"), X86[: X86.index("amx_tile")]
    ),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """One CPU as the kernels see it."""

    cpu: str
    architecture: str
    cores: int
    features: tuple[str, ...]
    compiler: str | None

    @property
    def exact_int8(self) -> bool:
        """Whether u8 x s8 products are summed in 32 bits in one step: fast, and exact for any weights."""
        return not EXACT.isdisjoint(self.features)

    @property
    def bf16(self) -> bool:
        """Whether bfloat16 products have an instruction of their own; elsewhere they are emulated, several
        times slower than fp32.
        """
        return not BF16.isdisjoint(self.features)

    def runs(self, dtype: str) -> bool:
        """Whether this machine has instructions for a number format, or would only emulate it."""
        return dtype != "bf16" or self.bf16

    @property
    def refused(self) -> str:
        """Why Octune does not tune on this CPU, or an empty string."""
        if self.architecture in ("x86_64", "AMD64"):
            return ""
        return (
            f"Octune's int8 kernels were only ever run on x86-64, and this CPU is {self.architecture}. "
            "Tune on an x86-64 machine; docs/cpus.md says what is known about ARM."
        )

    @property
    def generation(self) -> str:
        """The kind of CPU in a word or two, for tables and messages."""
        names = {
            "amx_int8": "AMX",
            "avx512_vnni": "AVX512-VNNI",
            "avx_vnni": "AVX-VNNI",
            "avx512f": "AVX512",
            "avx2": "AVX2",
        }
        return next((name for feature, name in names.items() if feature in self.features), self.architecture)

    def lacks(self, other: Mapping[str, Any]) -> tuple[str, ...]:
        """What code compiled on another machine (its :meth:`to_json`) may use but this one does not have."""
        if other["architecture"] != self.architecture:
            return (str(other["architecture"]),)
        return tuple(feature for feature in other["features"] if feature not in self.features)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for stamping results and saved models."""
        return asdict(self) | {"features": list(self.features)}


_pretended: list[Machine] = []


@contextmanager
def pretending(machine: Machine) -> Iterator[Machine]:
    """While this is open, :func:`probe_machine` returns this machine: how code for other CPUs is tested."""
    _pretended.append(machine)
    try:
        yield machine
    finally:
        _pretended.pop()


def probe_machine() -> Machine:
    """This machine, with the features that kernels are allowed to use."""
    return (
        _pretended[-1]
        if _pretended
        else _probed(next((os.environ[name] for name in LIMITS if os.environ.get(name)), ""))
    )


@cache
def _probed(limit: str) -> Machine:
    name, flags = platform.processor() or platform.machine(), set[str]()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags.update(value.split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    known = LEVELS.get(limit.upper(), X86) if platform.machine() in ("x86_64", "AMD64") else ARM
    features = tuple(feature for feature in known if feature in flags)
    return Machine(name, platform.machine(), cores, features, shutil.which(os.environ.get("CXX", "g++")))
