"""PyTorch models, opened to be run: modules, programs of ``torch.export``, and what Octune saved."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen

from octune.backends.batches import Inputs
from octune.backends.opened import Array, Covered, Opened, Port, Source, bytes_of
from octune.backends.torch.batches import Trying, named_outputs
from octune.backends.torch.compiled import CompiledModel
from octune.backends.torch.kinds import TransposedLinear
from octune.backends.torch.layers import Layer
from octune.backends.torch.portable import ProgramModel
from octune.backends.torch.signature import signature
from octune.backends.torch.storage import WEIGHTS, weight_bytes
from octune.backends.torch.work import computed
from octune.coverage import Work

__all__ = ["OpenedTorch"]


class OpenedTorch(Opened):
    """A module in inference mode. A program is called as it was exported: by position or by name, and in its
    types.
    """

    def __init__(self, model: nn.Module, source: Source) -> None:
        with suppress(NotImplementedError):  # a program is as it was exported
            model.eval()
        self._model, self._positional = model, _positional(model)
        self._threads_before = torch.get_num_threads()
        if source.threads:
            torch.set_num_threads(source.threads)
        size = weight_bytes(model)
        if not size and source.path is not None:  # native code alone
            size = bytes_of(source.path / WEIGHTS)
        super().__init__(source, signature(model), Trying(model), size=size, ops=_covered(model))
        self.config = getattr(model, "config", None)

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        if self._positional is not None:
            inputs = _as_exported(inputs, self.inputs, self._positional)
        with torch.inference_mode():
            return named_outputs(inputs(self._model))

    def _work(self, inputs: Inputs) -> Work | None:
        model = self._model.eager if isinstance(self._model, CompiledModel) else self._model
        if model is None:  # native code cannot be looked into
            return None
        if self._positional is not None:
            inputs = _as_exported(inputs, self.inputs, self._positional)
        return computed(model, inputs)

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)


def _positional(model: nn.Module) -> int | None:
    """How many inputs a program takes by position; None for a module, which takes them either way."""
    if isinstance(model, CompiledModel | ProgramModel):
        return len(model.signature.positional)
    graph = model.graph if isinstance(model, GraphModule) else None
    if not isinstance(graph, Graph) or not isinstance(graph._codegen, _PyTreeCodeGen):
        return None
    return int(graph._codegen.pytree_info.in_spec.child(0).num_leaves)


def _as_exported(inputs: Inputs, ports: Sequence[Port], count: int) -> Inputs:
    """The call that a program was made for, where the inputs allow it, in its types; a call in another form
    would go to the eager model, or nowhere.
    """
    given = {**dict(zip((port.name for port in ports), inputs.args, strict=False)), **inputs.kwargs}
    if not all(port.name in given for port in ports):
        return inputs
    cast = {
        port.name: value if port.dtype is None else value.to(getattr(torch, port.dtype.name))
        for port in ports
        for value in [given[port.name]]
    }
    args = tuple(cast[port.name] for port in ports[:count])
    return Inputs(args, {port.name: cast[port.name] for port in ports[count:]}, inputs.mask)


def _covered(model: nn.Module) -> Covered | None:
    if isinstance(model, ProgramModel):
        return _covered(model.program)
    if isinstance(model, CompiledModel):
        return None if model.eager is None else _covered(model.eager)
    found = [_in_int8(module) for module in model.modules()]
    if isinstance(model, GraphModule):
        found += [_called_in_int8(node) for node in model.graph.nodes if node.op == "call_function"]
    weighted = [one for one in found if one is not None]
    return Covered(sum(weighted), len(weighted))


def _in_int8(module: nn.Module) -> bool | None:
    """Whether a module multiplies in int8; None for one that does not multiply by weights."""
    if isinstance(module, Layer):
        return module.multiplies_int8 if "embedding" not in module.kind else None
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
        name = type(module).__name__
        return True if name.startswith(("Linear", "Conv")) and not name.endswith("PackedParams") else None
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Linear) and type(weight).__module__.startswith("torchao"):
        # Without a way to quantize its input, an int8 weight is turned into floats first.
        return "Int8" in type(weight).__name__ and getattr(weight, "act_quant_kwargs", None) is not None
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.RNNBase) or TransposedLinear.recognises(
        module
    ):
        return False
    return None


def _called_in_int8(node: Node) -> bool | None:
    """The same for a call in a program."""
    space, _, name = str(node.target).partition(".")
    if name.startswith(("linear", "conv", "addmm", "lstm", "gru", "qlinear", "qconv", "recurrent")):
        # Packing a weight is not multiplying by it.
        return None if "prepack" in name else space in ("octune", "onednn", "quantized")
    return None
