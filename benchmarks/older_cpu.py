"""Runs a command as if this CPU were an older one, at full speed.

    python benchmarks/older_cpu.py AVX2 make test
    python benchmarks/older_cpu.py AVX512_CORE_VNNI python benchmarks/onnx_speed.py

Levels are those of oneDNN's ONEDNN_MAX_CPU_ISA, which is set as well. What oneDNN does for itself, the
answers to the CPUID instruction do for all others (older_cpu.c): ONNX Runtime, OpenVINO, compilers. It needs
Linux, gcc and a CPU that can trap that instruction; the flags in /proc/cpuinfo say so with "cpuid_fault".
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LEVELS = ("AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16")
SOURCE = Path(__file__).with_suffix(".c")


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] not in LEVELS:
        print(f"usage: python benchmarks/older_cpu.py LEVEL COMMAND...; levels: {', '.join(LEVELS)}")
        return 2
    missing = obstacle()
    if missing:
        print(f"cannot look like an older CPU: {missing}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **older(sys.argv[1], Path(folder))}
        return subprocess.run(sys.argv[2:], env=environment).returncode


@functools.cache
def obstacle() -> str:
    """Why this machine cannot look like an older one; empty if it can."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "cpuid_fault" not in cpuinfo.read_text().split():
        return "this CPU or its kernel cannot trap the CPUID instruction (no cpuid_fault in /proc/cpuinfo)"
    try:
        with tempfile.TemporaryDirectory() as folder:
            older(LEVELS[0], Path(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{SOURCE.name} could not be compiled with gcc: {error}"
    return ""


def older(level: str, folder: Path) -> dict[str, str]:
    """The environment of a process that should see an older CPU, and all that it starts. The folder must be
    there as long as they run. Tests that look at /proc/cpuinfo are told not to believe it.
    """
    library = folder / "older_cpu.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    loaded = [str(library), *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {"LD_PRELOAD": ":".join(loaded), "ONEDNN_MAX_CPU_ISA": level, "OCTUNE_EMULATED_CPU": "1"}


if __name__ == "__main__":
    sys.exit(main())
