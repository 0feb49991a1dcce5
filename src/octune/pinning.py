"""Which cores an instance runs on, and what tells every framework how many threads that makes.

placed(2, 1)            # [(0,), (1,)]: two instances on one core each
threads_of(1)           # {"OMP_NUM_THREADS": "1", ...}: the environment of such an instance
"""

from __future__ import annotations

import os
from pathlib import Path

from octune.errors import ConfigError, UnsupportedError

__all__ = ["placed", "threads_of"]


def placed(instances: int = 1, cores: int | None = None) -> list[tuple[int, ...]]:
    """The cores of each instance, none shared; as many as there are for all together if ``cores`` is None."""
    if not hasattr(os, "sched_setaffinity"):
        if instances > 1 or cores is not None:
            raise UnsupportedError(
                "Processes can be pinned to cores on Linux only. Leave --instances and --cores out."
            )
        return [tuple(range(os.cpu_count() or 1))]
    if instances < 1 or (cores is not None and cores < 1):
        given = f"{instances} instances" + ("" if cores is None else f" and {cores} cores")
        raise ConfigError(f"Instances and cores must be at least 1. Got {given} instead.")
    here = _physical_first()
    each = cores if cores is not None else len(here) // instances
    if each < 1 or instances * each > len(here):
        raise ConfigError(
            f"{instances} x {max(each, 1)} cores were asked for, and this process may use {len(here)}. Ask "
            "for fewer instances, or fewer cores for each."
        )
    return [tuple(sorted(here[i * each : (i + 1) * each])) for i in range(instances)]


def _physical_first() -> list[int]:
    """The CPUs that this process may use; the second threads of cores come after all first ones."""
    here = sorted(os.sched_getaffinity(0))

    def turn(cpu: int) -> int:
        file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            listed = file.read_text().strip().replace("-", ",").split(",")
        except OSError:
            return 0
        return sum(other in here and other < cpu for other in map(int, listed))

    return sorted(here, key=lambda cpu: (turn(cpu), cpu))


def threads_of(cores: int) -> dict[str, str]:
    """What the frameworks read when they are imported. ONNX Runtime, OpenVINO and LiteRT are told when the
    model is opened.
    """
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return {name: str(cores) for name in counts} | {
        "TF_NUM_INTEROP_THREADS": "1",
        # Threads that wait by spinning would take the cores of the model whose turn it is.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000"),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
    }
