"""What this TensorFlow and this CPU can run, asked once.

    support().runs("_QuantizedMatMul")      # whether an int8 kernel runs here
    support().why                           # if none does: what is missing, and what to do about it

``_QuantizedMatMul`` came with TensorFlow 2.17 and is looked up in the op registry, because builds differ.
Whether int8 is faster than fp32 here is not asked: that is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from octune.machine import Machine, probe_machine

__all__ = ["Support", "support"]


@dataclass(frozen=True, slots=True)
class Support:
    """What ops may be turned into here. ``why`` is empty where int8 can be used."""

    layernorm: bool
    bf16: bool
    why: str = ""

    def runs(self, kernel: str) -> bool:
        """Whether an int8 op can be used."""
        return not self.why and _has(kernel)


def support(machine: Machine | None = None) -> Support:
    """What the registry of this TensorFlow and ``machine`` (this one, if left out) allow."""
    machine = machine or probe_machine()
    why = ""
    if not _has("_QuantizedMatMul"):
        why = (
            f"TensorFlow {tf.__version__} has no _QuantizedMatMul; install tensorflow-cpu>=2.17, or use "
            "bf16 or fp32"
        )
    return Support(
        layernorm=_has("_MklLayerNorm"),
        bf16=machine.bf16,
        why=why,
    )


@cache
def _has(op: str) -> bool:
    """Whether an op is known and has a kernel for the CPU."""
    if op_def_registry.get(op) is None:
        return False
    return any(kernel.device_type == "CPU" for kernel in kernels.get_registered_kernels_for_op(op).kernel)
