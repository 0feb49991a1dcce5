"""What runs a graph. The first is where plans are tried; the others are offered the plan that won.

    runtime = ONNX_RUNTIME
    model = runtime.build(graph, threads=2)
    model.run(None, {"input_ids": ids})         # -> list of arrays, like an onnxruntime session
    [i.name for i in model.get_inputs()]

A new runtime is a file with a subclass of :class:`Runtime`, and a place in ``RUNTIMES``.
"""

from octune.backends.onnx.runtimes.base import OnnxModel, Runtime, outputs_by_name
from octune.backends.onnx.runtimes.onnx_runtime import OnnxRuntime, session
from octune.backends.onnx.runtimes.openvino import OpenVino

__all__ = [
    "IN_BF16",
    "ONNX_RUNTIME",
    "OnnxModel",
    "RUNTIMES",
    "Runtime",
    "named",
    "outputs_by_name",
    "session",
]

ONNX_RUNTIME = OnnxRuntime()
RUNTIMES: tuple[Runtime, ...] = (ONNX_RUNTIME, OpenVino())
# Offered models without int8, on CPUs that have the instructions.
IN_BF16: tuple[Runtime, ...] = (OpenVino(bf16=True),)


def named(name: str) -> Runtime | None:
    """The runtime of that name, if this version of Octune has it."""
    return next((runtime for runtime in (*RUNTIMES, *IN_BF16) if runtime.name == name), None)
