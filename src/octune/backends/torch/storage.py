"""Saving a quantized module as plain files, and building it again without the fp32 model.

The folder holds ``model.safetensors`` (all tensors), what the layers are (plain data for the manifest), and
``compiled.pt2`` (native code) if the winner is compiled. A model of transformers is built again from its
configuration. Any other model comes with ``program.pt2``, the exported graph, which needs no code of yours
and runs on any supported CPU.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from octune.backends.torch.compiled import CompiledModel, Signature, load_compiled
from octune.backends.torch.copying import replace_module
from octune.backends.torch.functions.install import describe, rebuild
from octune.backends.torch.kinds import LAYERS
from octune.backends.torch.layers import Layer
from octune.backends.torch.openvino import OpenVinoModule, load_openvino
from octune.backends.torch.parametrized import store_weights
from octune.backends.torch.portable import export_program, import_types, load_program
from octune.backends.torch.transformer import build_transformer
from octune.backends.torch.wrappers import unwrap_parts, unwrapped
from octune.errors import ArtifactError, UnsupportedError, summary
from octune.importing import resolve
from octune.machine import probe_machine
from octune.trust import digest_of_native, made_here

__all__ = ["COMPILED", "PROGRAM", "Origin", "load", "save", "stamp", "weight_bytes"]

log = logging.getLogger("octune")
TRUST = "trust whoever made it: octune.load(folder, trust=True), or --trust"
WEIGHTS, COMPILED, PROGRAM, OPENVINO = "model.safetensors", "compiled.pt2", "program.pt2", "openvino"


@dataclass(frozen=True)
class Origin:
    """How the float architecture can be built again: ``huggingface`` class and config, ``factory``, or only a
    ``class`` name.
    """

    kind: str
    reference: str
    config: dict[str, Any] | None = None

    @classmethod
    def of(cls, model: nn.Module, source: str | None) -> Origin:
        """Find out from the model itself, and from where it came."""
        name = f"{type(model).__module__}:{type(model).__qualname__}"
        config = getattr(model, "config", None)
        if (
            config is not None
            and type(model).__module__.startswith("transformers.")
            and hasattr(config, "to_dict")
        ):
            return cls("huggingface", name, config.to_dict())
        if source is not None and ":" in source:
            return cls("factory", source)
        return cls("class", name)

    def build(self, *, trusted: bool) -> nn.Module:
        """The architecture with any weights; raises ArtifactError if that takes more than is known here, or
        code that the folder names.
        """
        if self.kind == "class":
            raise ArtifactError(
                f"The saved model is of the class {self.reference}, and only your code knows how to build "
                f"one. {self._advice}"
            )
        if self.kind == "factory" and not trusted:
            raise ArtifactError(
                f"The saved model was built by {self.reference}, a function that the folder names. The "
                "folder was not made by you on this machine, so nothing that it names is run. Give load() "
                f"the function itself: octune.load(folder, factory=...). If you {TRUST}."
            )
        try:
            if self.kind != "factory":
                return build_transformer(self.reference, dict(self.config or {}))
            built = resolve(self.reference)()
            if not isinstance(built, nn.Module):
                raise TypeError(f"it returned a {type(built).__name__}, which is not an nn.Module")
            return built
        except Exception as error:  # whatever the user's factory does
            raise ArtifactError(
                f"The saved model was built by {self.reference}, which cannot be done again here "
                f"({type(error).__name__}: {summary(error)}). {self._advice}"
            ) from error

    @property
    def _advice(self) -> str:
        name = self.reference.partition(":")[2]
        return (
            f"Give load() a function that builds one, with any weights: octune.load(folder, factory=lambda: "
            f"{name}(...))."
        )


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all distinct weights; tied ones count once."""
    if isinstance(model, OpenVinoModule):
        return 0 if model.runs.graph is None else model.runs.graph.nbytes
    model = model.eager if isinstance(model, CompiledModel) and model.eager is not None else model
    seen: dict[int, int] = {}
    for tensor in _stored(list(model.state_dict().values())):
        seen[tensor.data_ptr()] = max(seen.get(tensor.data_ptr(), 0), tensor.numel() * tensor.element_size())
    return sum(seen.values())


def _stored(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors in a module's state. PyTorch's own int8 modules keep tuples there, torchao keeps
    tensors made of others.
    """
    if isinstance(value, list | tuple):
        for item in value:
            yield from _stored(item)
    elif isinstance(value, torch.Tensor):
        inner = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else None
        yield from [value] if inner is None else _stored([getattr(value, name) for name in inner])


def save(model: nn.Module, origin: Origin, folder: Path, example: Any = None) -> dict[str, Any]:
    """Write the files; the plain data that comes back is what :func:`load` needs."""
    compiled = model if isinstance(model, CompiledModel) else None
    elsewhere = model if isinstance(model, OpenVinoModule) else None
    eager = model.eager if isinstance(model, CompiledModel | OpenVinoModule) else model
    metadata: dict[str, Any] = {"origin": asdict(origin)}
    if eager is None:
        raise ArtifactError(
            "This model was itself loaded without its layers; copy the folder that it came from instead."
        )
    tensors, ties = _distinct(eager.state_dict())
    save_file(tensors, folder / WEIGHTS)
    metadata["ties"] = ties
    metadata["layers"] = {
        name: {"kind": m.kind, "settings": m.settings}
        for name, m in eager.named_modules()
        if isinstance(m, Layer)
    }
    metadata["functions"] = describe(eager)
    metadata["identities"] = [name for name, m in eager.named_modules() if type(m) is nn.Identity]
    if compiled is not None:
        shutil.copyfile(compiled.package, folder / COMPILED)
        metadata["compiled"] = stamp(compiled)
    if elsewhere is not None:
        metadata[OPENVINO] = elsewhere.save(folder / OPENVINO)
    if origin.kind != "huggingface":
        _add_program(eager, origin, folder, example, metadata)
    return metadata


def stamp(compiled: CompiledModel) -> dict[str, Any]:
    """What must be known to run native code: how it is called, and where it can run."""
    return {
        "signature": compiled.signature.to_json(),
        "machine": probe_machine().to_json(),
        "torch": str(torch.__version__),
    }


def _add_program(
    eager: nn.Module, origin: Origin, folder: Path, example: Any, metadata: dict[str, Any]
) -> None:
    """Write the form that needs no code of the user's, or say at once that loading will need it."""
    try:
        if example is None:
            raise UnsupportedError("no data was seen that it could be traced with")
        metadata["program"] = told = export_program(eager, example, folder / PROGRAM)
        if (only := Signature.from_json(told["signature"]).fixed_batch) is not None:
            metadata["notes"] = [
                f"the saved model takes batches of {only} only, because its forward computes with the batch "
                "size as a constant; octune.load(folder, factory=...) takes any that its class takes"
            ]
    except Exception as error:  # exporting runs the user's forward
        (folder / PROGRAM).unlink(missing_ok=True)
        metadata["notes"] = [
            f"the saved model can be loaded only with its class, octune.load(folder, factory=...), where "
            f"factory builds it as {origin.reference} does, with any weights: {summary(error)}"
        ]


def _distinct(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    tensors: dict[str, torch.Tensor] = {}
    ties: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and key in first:
            ties[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor.detach().clone().contiguous()
    return tensors, ties


def load(
    folder: Path,
    metadata: Mapping[str, Any],
    factory: Callable[[], nn.Module] | None = None,
    *,
    limit_again: bool = False,
    trusted: bool = False,
) -> nn.Module:
    """Build the model again: as native code where that can run and may, else from its class if ``factory`` or
    transformers can build that, else from the exported program.

    ``limit_again`` makes the weights safe for this CPU, which is not possible in native code.
    """
    origin, program = Origin(**metadata["origin"]), metadata.get("program")
    eager: nn.Module | None = None
    reason = ArtifactError(f"{folder} holds nothing that can be run here.")
    try:
        if factory is not None or program is None:
            eager = _rebuilt(
                folder, metadata, factory or partial(origin.build, trusted=trusted), limit_again=limit_again
            )
        else:
            import_types(program["imports"], trusted=trusted)
    except ArtifactError as error:
        if factory is not None:
            raise  # the user has given it to be used
        reason = error
    if "compiled" in metadata and not limit_again:
        native = _native(folder, metadata, eager, trusted=trusted)
        if native is not None:
            return native
    if eager is None:
        if program is None:
            raise reason
        layers = metadata["layers"].items()
        multiplied = [name for name, layer in layers if LAYERS[layer["kind"]].multiplies_int8]
        again = multiplied if limit_again else ()
        eager = load_program(folder / PROGRAM, program, again=again, trusted=trusted)
    if OPENVINO in metadata and not limit_again:
        return _on_openvino(folder, metadata[OPENVINO], eager, trusted=trusted)
    return eager


def _rebuilt(
    folder: Path, metadata: Mapping[str, Any], build: Callable[[], nn.Module], *, limit_again: bool
) -> nn.Module:
    built, _ = unwrapped(build())
    unwrap_parts(built)
    store_weights(built.eval())
    model = _restore(built, folder, metadata)
    for module in model.modules() if limit_again else ():
        if isinstance(module, Layer) and module.multiplies_int8:
            module.limit_again()
    return model


def _native(
    folder: Path, metadata: Mapping[str, Any], eager: nn.Module | None, *, trusted: bool
) -> nn.Module | None:
    """The compiled form, or None with a warning where it cannot run, or may not."""
    told, here = metadata["compiled"], probe_machine()
    if not trusted and not made_here(digest_of_native(folder / COMPILED, told)):
        log.warning(
            "%s was not made by you on this machine, so its compiled code is not run: the same int8 model is "
            "built from its graph, which is slower. 'octune compile %s' compiles it here. If you %s",
            folder,
            folder,
            TRUST,
        )
        return None
    if lacking := here.lacks(told["machine"]):
        why = f"was made for a CPU with {', '.join(lacking)}, which this one lacks"
    elif told["torch"] != str(torch.__version__):
        why = f"was made by torch {told['torch']}, this is {torch.__version__}"
    else:
        try:
            return load_compiled(folder / COMPILED, told["signature"], eager)
        except ArtifactError as error:
            why = f"cannot be loaded here ({error})"
    log.warning("the compiled model %s: eager int8 is used", why)
    return None


def _on_openvino(folder: Path, told: Mapping[str, Any], eager: nn.Module, *, trusted: bool) -> nn.Module:
    """The form on OpenVINO, or the eager one with a warning where that is not installed."""
    if importlib.util.find_spec("openvino") is None or importlib.util.find_spec("onnx") is None:
        log.warning(
            "the model was tuned for OpenVINO, which is not installed: eager int8 is used. pip install "
            "'octune[onnx]'"
        )
        return eager
    return load_openvino(folder / OPENVINO, told, eager, trusted=trusted)


def _restore(model: nn.Module, folder: Path, metadata: Mapping[str, Any]) -> nn.Module:
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    tensors.update({name: tensors[source] for name, source in metadata["ties"].items()})
    try:
        rebuild(model, metadata.get("functions", []))
        for name, layer in metadata["layers"].items():
            prefix = f"{name}."
            own = {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}
            new = LAYERS[layer["kind"]](**layer["settings"]).set_tensors(**own)
            replace_module(model, model.get_submodule(name), new)
        for name in metadata["identities"]:
            if type(model.get_submodule(name)) is not nn.Identity:
                replace_module(model, model.get_submodule(name), nn.Identity())
        for name, tensor in tensors.items():
            _assign(model, name, tensor)
    except (AttributeError, KeyError) as error:
        raise ArtifactError(
            f"The architecture that was built does not fit the saved weights: {error}"
        ) from error
    left = sorted(set(model.state_dict()) - set(tensors))
    if left:
        raise ArtifactError(
            f"The saved weights lack {left[0]!r}, which the architecture has ({len(left)} such): is it "
            "another version of the class?"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def _assign(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    if isinstance(owner, Layer):
        return
    if leaf in owner._buffers:
        owner._buffers[leaf] = tensor
    else:
        owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
