"""The int8 model as an exported program, which loads on any supported CPU without the model's class.

    told = export_program(int8_module, call, folder / "program.pt2")
    model = load_program(folder / "program.pt2", told)

The program holds the int8 weights and the very ops that the eager layers call, so its outputs are theirs, to
the bit. ``told`` is plain data: how the model is called, and what must be imported before it can be read.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octune.backends.batches import Inputs
from octune.backends.torch.archive import read_program
from octune.backends.torch.compiled import Signature, export
from octune.backends.torch.layers import limit_again
from octune.backends.torch.lowering import fill_empty_arguments, fold_packing, quantize_as_layers_do
from octune.backends.torch.quantize import to_uint8
from octune.backends.torch.recurrence import rename_recurrences
from octune.errors import ArtifactError, summary

__all__ = ["ProgramModel", "export_program", "import_types", "load_program"]


def export_program(model: nn.Module, call: Inputs, path: Path) -> dict[str, Any]:
    """Save the int8 graph itself; raises UnsupportedError if the model cannot be exported."""
    program, signature = export(model, call)
    fill_empty_arguments(program)
    torch.export.save(program, path)
    return {
        "signature": signature.to_json(),
        "sizes": [
            list(tensor.shape)
            for tensor in (*call.args, *(call.kwargs[name] for name, *_ in signature.named))
        ],
        "parameters": _parameters(model),
        "imports": sorted({*_modules(program.call_spec.in_spec), *_modules(program.call_spec.out_spec)}),
    }


def _parameters(model: nn.Module) -> list[str]:
    """The names of what ``forward`` takes, in the order in which it may be given without them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds]


def _modules(spec: Any) -> Iterator[str]:
    """Where the types of inputs and outputs come from, those of Python and PyTorch aside. A program that
    returns a transformers ``ModelOutput`` can be read only after that was imported.
    """
    module = getattr(spec.type, "__module__", "builtins") if spec is not None else "builtins"
    if module.partition(".")[0] not in ("builtins", "collections", "torch"):
        yield module
    for child in spec.children() if spec is not None else ():
        yield from _modules(child)


def import_types(modules: Collection[str], *, trusted: bool) -> None:
    """Import what defines the types of inputs and outputs. Importing runs code, so that of a stranger's model
    may only be a library's.
    """
    for module in modules:
        if not trusted and module.partition(".")[0] != "transformers":
            raise ArtifactError(
                f"The saved model takes or returns objects of {module}, and was not made by you on this "
                "machine: nothing that it names is imported. If you trust whoever made it: "
                "octune.load(folder, trust=True)."
            )
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ArtifactError(
                f"The saved model takes or returns objects of {module}, which cannot be imported here "
                f"({error}). Install it, or put it on the Python path."
            ) from error


class ProgramModel(nn.Module):
    """An exported program with the manners of the module that it was made from: ``eval()`` works, and inputs
    may be given by position or by name.
    """

    def __init__(self, program: nn.Module, told: Mapping[str, Any]) -> None:
        super().__init__()
        self.program = program
        self.signature = Signature.from_json(told["signature"])
        self.parameters_in_order = list(told["parameters"])
        self.sizes: list[list[int]] = told.get("sizes", [])  # of the inputs that it was exported with
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        positional, names = len(self.signature.positional), [name for name, *_ in self.signature.named]
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if len(args) != positional or set(kwargs) != set(names):
            given = {**dict(zip(self.parameters_in_order, args, strict=False)), **kwargs}
            first = self.parameters_in_order[:positional]
            if len(args) > len(self.parameters_in_order) or set(given) != {*first, *names}:
                wanted = [name for name in self.parameters_in_order if name in {*first, *names}]
                raise ArtifactError(
                    f"This saved model takes {', '.join(wanted)}: the inputs that it was tuned "
                    f"with. It was given {', '.join(given) or 'nothing'}. For other inputs load it with its "
                    "class: octune.load(folder, factory=...)."
                )
            args, kwargs = tuple(given[name] for name in first), {name: given[name] for name in names}
        if not self.signature.matches(args, kwargs) and (only := self.signature.fixed_batch) is not None:
            raise ArtifactError(
                f"This saved model takes batches of {only}, no others: its forward computes with the batch "
                "size as a constant. Give it such batches, or load it with its class: octune.load(folder, "
                "factory=...)."
            )
        return self.program(*args, **kwargs)

    def train(self, mode: bool = True) -> ProgramModel:
        """It has no train mode; asking for one changes nothing."""
        return self


def load_program(
    path: Path, told: Mapping[str, Any], again: Collection[str] = (), *, trusted: bool = False
) -> ProgramModel:
    """The saved int8 graph as a module; weights are packed for the kernels once, here, those of the layers in
    ``again`` limited before.
    """
    import_types(told["imports"], trusted=trusted)
    try:
        with _quiet():
            program = read_program(path)
    except Exception as error:
        raise ArtifactError(
            f"{path} cannot be read by torch {torch.__version__}: {summary(error)}. Load it with the torch "
            "that wrote it (see octune.json), or with its class: octune.load(folder, factory=...)."
        ) from error
    for name in again:
        tensors = {
            key.removeprefix(f"{name}."): tensor
            for key, tensor in program.state_dict.items()
            if key.startswith(f"{name}.")
        }
        for part, tensor in limit_again(tensors).items():
            tensors[part].copy_(tensor)
    if again:
        rename_recurrences(program.graph)
    module = program.module()
    fold_packing(module)
    quantize_as_layers_do(module, to_uint8)
    return ProgramModel(module, told)


@contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong is raised; torch prints it as well."""
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
