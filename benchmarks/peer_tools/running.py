"""How models are run, once a tool has made them: functions from inputs by name to outputs by name. Frameworks
are imported where they are needed, since each tool has an environment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from job import Arrays, Run

__all__ = ["on_litert", "on_onnxruntime", "on_openvino", "on_torch", "session_run"]


def on_onnxruntime(model: Path | bytes) -> Run:
    import onnxruntime as ort

    given = model if isinstance(model, bytes) else str(model)
    return session_run(ort.InferenceSession(given, providers=["CPUExecutionProvider"]))


def session_run(session: Any) -> Run:
    """For a session of ONNX Runtime, or what has its methods."""
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def on_openvino(model: Path) -> Run:
    import openvino as ov

    compiled = ov.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return openvino_run(compiled)


def openvino_run(compiled: Any) -> Run:
    """For a compiled model."""
    return lambda inputs: {port.any_name: array for port, array in compiled(inputs).items()}


def on_torch(model: Any) -> Run:
    import torch

    def run(inputs: Arrays) -> dict[str, Any]:
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.inference_mode():
            answer = model(**tensors) if len(tensors) > 1 else model(*tensors.values())
        named = answer if isinstance(answer, Mapping) else {"logits": answer}
        return {name: value.numpy() for name, value in named.items() if isinstance(value, torch.Tensor)}

    return run


def on_litert(file: Path) -> Run:
    """With all cores; for each new shape of the inputs its buffers are made anew, as LiteRT asks for."""
    import os

    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file), num_threads=os.cpu_count())
    shapes: dict[str, Any] = {}

    def run(inputs: Arrays) -> dict[str, Any]:
        ports = {
            port["name"].split(":")[0].removeprefix("serving_default_"): port
            for port in interpreter.get_input_details()
        }
        if shapes != {name: array.shape for name, array in inputs.items()}:
            shapes.update({name: array.shape for name, array in inputs.items()})
            for name, array in inputs.items():
                interpreter.resize_tensor_input(ports[name]["index"], array.shape)
            interpreter.allocate_tensors()
        for name, array in inputs.items():
            interpreter.set_tensor(ports[name]["index"], array.astype(ports[name]["dtype"]))
        interpreter.invoke()
        return {"logits": interpreter.get_tensor(interpreter.get_output_details()[0]["index"])}

    return run
