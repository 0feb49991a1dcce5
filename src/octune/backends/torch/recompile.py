"""The compiled form of a saved model, made anew on this machine: from its exported program, or from its eager
int8 layers where transformers can build them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octune.backends.batches import Inputs
from octune.backends.terms import Recompiled
from octune.backends.torch.archive import read_program
from octune.backends.torch.batches import named_outputs
from octune.backends.torch.compiled import CompiledModel, Signature, compile_model, compile_program
from octune.backends.torch.portable import ProgramModel
from octune.backends.torch.storage import COMPILED, PROGRAM, stamp
from octune.errors import ArtifactError, UnsupportedError
from octune.trust import digest_of_native

__all__ = ["recompile"]


def recompile(
    folder: Path, metadata: Mapping[str, Any], model: nn.Module, example: Callable[[], Inputs]
) -> Recompiled:
    """Compile a model that was loaded from the folder, and put the package there."""
    try:
        if isinstance(model, ProgramModel):
            made, call = _from_program(folder, metadata)
        else:
            call = _as_before(metadata, example())
            made = compile_model(model, call)
    except UnsupportedError as error:
        raise ArtifactError(f"{folder} cannot be compiled here: {error}.") from error
    if not made.signature.matches(call.args, call.kwargs):
        raise ArtifactError(f"{folder} cannot be compiled here: its program does not take its own example.")
    with torch.inference_mode():
        before, after = named_outputs(call(model)), named_outputs(call(made))
    shutil.copyfile(made.package, folder / COMPILED)
    changed = {**metadata, "compiled": stamp(made)}
    return Recompiled(changed, digest_of_native(folder / COMPILED, changed["compiled"]), before, after)


def _from_program(folder: Path, metadata: Mapping[str, Any]) -> tuple[CompiledModel, Inputs]:
    """The program compiled, and the inputs that it was exported with."""
    outputs = {
        name: tuple(output)
        for name, layer in metadata["layers"].items()
        if (output := layer["settings"].get("output"))
    }
    program = read_program(folder / PROGRAM)
    args, kwargs = program.example_inputs
    signature = Signature.from_json(metadata["program"]["signature"])
    return compile_program(program, signature, outputs, None), Inputs(tuple(args), dict(kwargs))


def _as_before(metadata: Mapping[str, Any], call: Inputs) -> Inputs:
    """The call with those inputs that the compiled form was made for, where there was one."""
    told = metadata.get("compiled")
    if told is None:
        return call
    names = {name for name, *_ in Signature.from_json(told["signature"]).named}
    return Inputs(call.args, {name: value for name, value in call.kwargs.items() if name in names}, call.mask)
