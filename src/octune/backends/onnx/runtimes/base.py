"""What every runtime has in common: how it is used, and how its models look to scoring code."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octune.backends.onnx.graph import Array, Model

__all__ = ["OnnxModel", "Port", "Runtime", "outputs_by_name"]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: what an onnxruntime ``NodeArg`` says."""

    name: str
    type: str
    shape: list[Any]


class OnnxModel(ABC):
    """A model that runs, with the methods of an onnxruntime session that scoring code uses.

    ``graph`` is the Q/DQ graph that is saved for any runtime; None for a model that came from a saved folder.
    """

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
        """The outputs of these names, or all of them, in order."""
        if self.seen is not None and not self.seen:
            self.seen.append(dict(input_feed))
        names = list(output_names) if output_names else [port.name for port in self._outputs]
        return self._run(names, dict(input_feed))

    @abstractmethod
    def _run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]: ...

    @abstractmethod
    def fresh(self) -> OnnxModel:
        """The same model without what a user's code may have set on it; runs on the same session."""


class Runtime(ABC):
    """Something that runs ONNX graphs. Threads work inside an op; ops run one after the other."""

    name: str  # in manifests, and as the form of a trial
    title: str
    package: str
    form: str  # of its files, as servers and ``performance.forms`` call it
    own_ops: bool = False  # whether it has the ops that ONNX Runtime adds to ONNX
    # whether it wants activations of matrix products signed, if they are around zero, without a zero point
    signed_activations: bool
    fuses_activations: bool = False  # whether an int8 convolution computes any function that follows, too

    def installed(self) -> bool:
        """Whether it can be imported here."""
        return importlib.util.find_spec(self.package) is not None

    def version(self) -> str:
        """The version of the installed package."""
        return str(importlib.import_module(self.package).__version__)

    @abstractmethod
    def build(self, graph: Model, threads: int | None) -> OnnxModel:
        """The graph, ready to run."""

    def write(self, model: OnnxModel, folder: Path) -> None:
        """Whatever is needed beside the ONNX file to load the model again: most runtimes need nothing."""
        return

    @abstractmethod
    def files(self, folder: Path) -> list[Path]:
        """The files of a saved model that this runtime reads; none if it has not been saved for it."""

    @abstractmethod
    def read(self, file: Path, threads: int | None) -> OnnxModel:
        """A saved model. ``file`` is its ONNX file; what :meth:`write` wrote is beside it."""


def outputs_by_name(names: Iterable[str], values: Iterable[Any]) -> dict[str, Array]:
    """Arrays by output name; sequences and maps are left out."""
    return {name: value for name, value in zip(names, values, strict=True) if hasattr(value, "dtype")}
