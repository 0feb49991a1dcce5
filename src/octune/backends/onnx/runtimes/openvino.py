"""OpenVINO on the CPU. A saved model has its own form beside the ONNX file: ``openvino.xml`` and ``.bin``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from octune.backends.onnx.files import GRAPH, write_graph
from octune.backends.onnx.graph import Model
from octune.backends.onnx.runtimes.base import OnnxModel, Port, Runtime
from octune.scratch import scratch

__all__ = ["OpenVino", "core", "settings"]

IR = "openvino.xml"


class OpenVino(Runtime):
    """Offered the plan that won. It has no int8 attention with a zero point, hence signed activations. With
    ``bf16`` it computes in that what a graph has in fp32.
    """

    package = "openvino"
    title = "OpenVINO"
    form = "openvino"
    signed_activations = fuses_activations = True

    def __init__(self, *, bf16: bool = False) -> None:
        self.name = "openvino-bf16" if bf16 else "openvino"
        self._bf16 = bf16

    def build(self, graph: Model, threads: int | None) -> OnnxModel:
        with scratch() as folder:
            path = folder / GRAPH
            write_graph(graph, path)
            return self._compiled(graph, path, threads)

    def write(self, model: OnnxModel, folder: Path) -> None:
        import openvino

        assert isinstance(model, _OpenVinoModel)
        openvino.save_model(model.source, str(folder / IR), compress_to_fp16=False)

    def files(self, folder: Path) -> list[Path]:
        return [path for path in (folder / IR, (folder / IR).with_suffix(".bin")) if path.exists()]

    def read(self, file: Path, threads: int | None) -> OnnxModel:
        declared = Model(onnx.load(str(file), load_external_data=False))
        model = self._compiled(declared, file.with_name(IR), threads)
        model.graph = None
        return model

    def _compiled(self, graph: Model, file: Path, threads: int | None) -> OnnxModel:
        """The model in ``file``, an ONNX file or an IR, with the inputs and outputs that ``graph``
        declares.
        """
        source = core().read_model(str(file))
        compiled = core().compile_model(source, "CPU", settings(threads, bf16=self._bf16))
        proto = graph.proto.graph
        return _OpenVinoModel(self.name, graph, compiled, (_ports(proto.input), _ports(proto.output)), source)


class _OpenVinoModel(OnnxModel):
    def __init__(
        self,
        runtime: str,
        graph: Model | None,
        compiled: Any,
        ports: tuple[Sequence[Port], Sequence[Port]],
        source: Any,
    ) -> None:
        super().__init__(graph, *ports)
        self.runtime = runtime
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

    def fresh(self) -> OnnxModel:
        ports = self._inputs, self._outputs
        return _OpenVinoModel(self.runtime, self.graph, self._compiled, ports, self.source)


@cache
def core() -> Any:
    """OpenVINO itself, once in a process. Each Core gives the thread that makes it a stack for signals, and
    when it goes it puts back the one that was there before, be that gone or not: where two Cores do not go in
    reverse order, the next Ctrl-C or alarm ends the process.
    """
    import openvino

    return openvino.Core()


def settings(threads: int | None, *, bf16: bool = False) -> dict[str, Any]:
    """How a model is compiled: for latency, and in fp32, or bf16, what is not int8."""
    chosen = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        "ENABLE_CPU_PINNING": False,
    }
    return chosen | ({"INFERENCE_NUM_THREADS": threads} if threads else {})


def _ports(items: Any) -> list[Port]:
    """Inputs or outputs as the graph declares them: the IR has lost the names of symbolic sizes."""
    return [
        Port(
            item.name,
            # as ONNX Runtime calls it
            f"tensor({onnx.TensorProto.DataType.Name(item.type.tensor_type.elem_type).lower()})",
            [
                size.dim_value if size.HasField("dim_value") else size.dim_param or None
                for size in item.type.tensor_type.shape.dim
            ],
        )
        for item in items
    ]
