"""What runs a graph: ONNX Runtime, or OpenVINO. Both look like an onnxruntime session to scoring code.

    model = ort_model(graph, threads=2)
    model.run(None, {"input_ids": ids})         # -> list of arrays
    [i.name for i in model.get_inputs()]

Sessions have as many threads as the run may use, inside an op; ops run one after the other.
"""

from __future__ import annotations

import importlib.util
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from octune.backends.onnx.graph import Array, Model
from octune.errors import ModelError, summary

__all__ = ["OnnxModel", "OpenVinoModel", "OrtModel", "has_openvino", "openvino_model", "ort_model", "session"]

# Its warnings are about what it does with a graph, not about what is wrong with it.
ort.set_default_logger_severity(3)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: what an onnxruntime ``NodeArg`` says."""

    name: str
    type: str
    shape: list[Any]


class OnnxModel(ABC):
    """A model that runs, with the methods of an onnxruntime session that scoring code uses."""

    runtime: str

    def __init__(self, graph: Model | None, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self.graph = graph
        self._inputs, self._outputs = list(inputs), list(outputs)
        self.seen: list[Any] | None = None

    def get_inputs(self) -> list[Port]:
        """Name, type and shape of every input."""
        return list(self._inputs)

    def get_outputs(self) -> list[Port]:
        """Name, type and shape of every output."""
        return list(self._outputs)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Outputs of that name, or all of them, in order."""
        if self.seen is not None and not self.seen:
            self.seen.append(dict(input_feed))
        return self._run(
            list(output_names) if output_names else [port.name for port in self._outputs], dict(input_feed)
        )

    @abstractmethod
    def _run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]: ...

    @abstractmethod
    def fresh(self) -> OnnxModel:
        """The same model as nobody has seen it yet; runs on the same session."""


class OrtModel(OnnxModel):
    """On ONNX Runtime."""

    runtime = "onnxruntime"

    def __init__(self, graph: Model | None, running: ort.InferenceSession) -> None:
        ports = [
            [Port(item.name, item.type, item.shape) for item in items]
            for items in (running.get_inputs(), running.get_outputs())
        ]
        super().__init__(graph, *ports)
        self._session = running

    def _run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        return list(self._session.run(outputs, feed))

    def fresh(self) -> OrtModel:
        return OrtModel(self.graph, self._session)


class OpenVinoModel(OnnxModel):
    """On OpenVINO. ``folder`` holds the IR while the model lives, for saving it."""

    runtime = "openvino"

    def __init__(
        self, graph: Model | None, compiled: Any, ports: tuple[Sequence[Port], Sequence[Port]], source: Any
    ) -> None:
        super().__init__(graph, *ports)
        self._compiled, self.source = compiled, source
        self._request = compiled.create_infer_request()
        self._names = {name for port in compiled.inputs for name in port.names}

    def _run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        unknown = set(feed) - {port.name for port in self._inputs}
        if unknown:
            raise ValueError(
                f"The model has no input {sorted(unknown)[0]!r}. It has: "
                f"{', '.join(p.name for p in self._inputs)}."
            )
        self._request.infer(
            {name: value for name, value in feed.items() if name in self._names}, share_inputs=True
        )
        return [self._request.get_tensor(name).data.copy() for name in outputs]

    def detached(self) -> OpenVinoModel:
        """The same model without a graph to save: it came from a saved folder."""
        return OpenVinoModel(None, self._compiled, (self._inputs, self._outputs), self.source)

    def fresh(self) -> OpenVinoModel:
        return OpenVinoModel(self.graph, self._compiled, (self._inputs, self._outputs), self.source)


def session(graph: Model | Path, threads: int | None) -> ort.InferenceSession:
    """An ONNX Runtime session on a graph whose tensors are shared with it, or on a file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or 0, 1
    # Threads that go on spinning after a call take the cores from whatever is timed in turns with it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        if isinstance(graph, Path):
            return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        proto, large = graph.skeleton()
        values = [ort.OrtValue.ortvalue_from_numpy(_shareable(array)) for array in large.values()]
        options.add_external_initializers(list(large), values)
        made = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made.octune_keeps = values  # the session reads these arrays; they must live as long
        return made
    except (
        Exception
    ) as error:  # onnxruntime has an exception class for every status, with no common base but Exception
        raise ModelError(f"ONNX Runtime cannot load the model: {summary(error)}") from error


def _shareable(array: Array) -> Array:

    return np.require(array, requirements=["C", "A"])


def ort_model(graph: Model, threads: int | None) -> OrtModel:
    """A model on ONNX Runtime."""
    return OrtModel(graph, session(graph, threads))


def has_openvino() -> bool:
    """Whether OpenVINO is installed."""
    return importlib.util.find_spec("openvino") is not None


def openvino_model(graph: Model, file: Path, threads: int | None, keep: Model | None = None) -> OpenVinoModel:
    """A model on OpenVINO, read from ``file``: the ONNX file of ``graph``, or an IR. ``keep`` is the graph to
    save beside the IR.
    """
    import openvino

    core = openvino.Core()
    source = core.read_model(str(file))
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = core.compile_model(source, "CPU", settings)
    return OpenVinoModel(keep or graph, compiled, ports_of(graph), source)


def ports_of(graph: Model) -> tuple[list[Port], list[Port]]:
    """Inputs and outputs as the graph declares them."""

    def port(item: Any) -> Port:
        kind = item.type.tensor_type
        shape = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim
        ]
        return Port(item.name, f"tensor({kind.elem_type})", shape)

    return [port(item) for item in graph.proto.graph.input], [port(item) for item in graph.proto.graph.output]


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes when it is no longer needed."""
    return tempfile.TemporaryDirectory(prefix="octune-onnx-")


def outputs_by_name(names: Iterable[str], values: Iterable[Any]) -> dict[str, Array]:
    """Arrays by output name; what is no array (sequences, maps) is left out."""
    return {name: value for name, value in zip(names, values, strict=True) if hasattr(value, "dtype")}
