"""What this machine can do: instruction sets, cores, compiler.

probe_machine().vnni        # True where int8 dot products are fast and cannot saturate
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Machine", "probe_machine"]

# What the kernels look for, in the words of /proc/cpuinfo.
INTERESTING = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "asimddp", "i8mm")


@dataclass(frozen=True, slots=True)
class Machine:
    """One CPU as the kernels see it."""

    cpu: str
    architecture: str
    cores: int
    features: tuple[str, ...]
    compiler: str | None

    @property
    def vnni(self) -> bool:
        """Whether u8 x s8 products are summed in 32 bits in one step: fast, and no saturation."""
        return bool({"avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"} & set(self.features))

    @property
    def bf16(self) -> bool:
        """Whether bfloat16 products have an instruction of their own."""
        return bool({"avx512_bf16", "amx_bf16"} & set(self.features))

    def to_json(self) -> dict[str, Any]:
        """Plain data, for stamping results and saved models."""
        return asdict(self) | {"features": list(self.features)}


@cache
def probe_machine() -> Machine:
    """Look at the machine once."""
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
    features = tuple(feature for feature in INTERESTING if feature in flags)
    return Machine(name, platform.machine(), cores, features, shutil.which(os.environ.get("CXX", "g++")))
