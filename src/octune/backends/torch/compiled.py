"""The winner as native code: export, fuse, AOTInductor.

    model = compile_model(int8_module, call)      # an nn.Module like the one that came in

The int8 layers export as themselves, so the graph holds exactly the plan: there is nothing for a pattern
matcher to miss. Int8 then flows from layer to layer (see ``lowering``), and the compiler fuses what is left
of the float work around it. Calls that the program was not exported for (another set of inputs, another type)
go to the eager int8 model.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octune.backends.batches import Inputs
from octune.backends.torch.digest import digest_of_program
from octune.backends.torch.front import Front
from octune.backends.torch.functions.attention import without_hints
from octune.backends.torch.layers import Int8Layer
from octune.backends.torch.lowering import lower
from octune.errors import ArtifactError, UnsupportedError, summary
from octune.machine import probe_machine
from octune.native import NativeCache
from octune.scratch import Scratch

__all__ = ["CompiledModel", "Signature", "compile_model", "compile_program", "export", "load_compiled"]

log = logging.getLogger("octune")
# One model is compiled once: compiling headers ahead, or testing whether vector code compiles for a CPU that
# has it, takes longer than it saves.
COMPILER = {"freezing": True, "aot_inductor.precompile_headers": False, "cpp.vec_isa_ok": True}

Free = Callable[[torch.Tensor], tuple[int, ...]]  # which dimensions of an input may vary


@dataclass(frozen=True)
class Signature:
    """Which calls a compiled program answers: names, types and ranks of its inputs, and the dimensions that
    are fixed.
    """

    positional: tuple[tuple[str, int, tuple[int | None, ...]], ...]
    named: tuple[tuple[str, str, int, tuple[int | None, ...]], ...]

    @classmethod
    def of(cls, call: Inputs, dynamic: Free) -> Signature:
        """The signature of a call whose tensors have their ``dynamic(tensor)`` dimensions free."""

        def shape(tensor: torch.Tensor) -> tuple[int | None, ...]:
            return tuple(None if i in dynamic(tensor) else int(size) for i, size in enumerate(tensor.shape))

        return cls(
            tuple((str(t.dtype), t.ndim, shape(t)) for t in call.args),
            tuple(sorted((name, str(t.dtype), t.ndim, shape(t)) for name, t in call.kwargs.items())),
        )

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size that the program takes, or None if it takes any."""
        shapes = [shape for _, _, shape in self.positional] + [shape for _, _, _, shape in self.named]
        return next((shape[0] for shape in shapes if shape), None)

    def narrowed(self, shapes: Sequence[tuple[int | None, ...]]) -> Signature:
        """With the dimensions that the model has turned out to fix, for each input in the order of the call's
        names.
        """
        count = len(self.positional)

        def fixed(shape: tuple[int | None, ...], found: tuple[int | None, ...]) -> tuple[int | None, ...]:
            return tuple(
                known if known is not None else size for known, size in zip(shape, found, strict=True)
            )

        return Signature(
            tuple((d, n, fixed(s, f)) for (d, n, s), f in zip(self.positional, shapes[:count], strict=True)),
            tuple((k, d, n, fixed(s, f)) for (k, d, n, s), f in zip(self.named, shapes[count:], strict=True)),
        )

    def matches(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is one that the program was exported for. None counts as not given."""
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if len(args) != len(self.positional) or len(kwargs) != len(self.named):
            return False
        pairs = [(wanted, value) for wanted, value in zip(self.positional, args, strict=True)]
        for name, *wanted in self.named:
            if name not in kwargs:
                return False
            pairs.append((tuple(wanted), kwargs[name]))  # type: ignore[arg-type]
        return all(_fits(value, *wanted) for wanted, value in pairs)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "positional": [list(item) for item in self.positional],
            "named": [list(item) for item in self.named],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """The inverse of :meth:`to_json`."""
        positional = tuple((d, n, tuple(s)) for d, n, s in data["positional"])
        return cls(positional, tuple((name, d, n, tuple(s)) for name, d, n, s in data["named"]))


def _fits(value: Any, dtype: str, ndim: int, shape: tuple[int | None, ...]) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and str(value.dtype) == dtype
        and value.ndim == ndim
        and value.device.type == "cpu"
        and value.numel() > 0
        and all(wanted is None or wanted == size for wanted, size in zip(shape, value.shape, strict=True))
    )


class CompiledModel(Front):
    """Native code behind the face of the module it was made from. ``took`` is how many seconds it took to
    compile, now or when this machine did it first.
    """

    took = 0.0

    def __init__(
        self, runner: Callable[..., Any], package: Path, signature: Signature, eager: nn.Module | None
    ) -> None:
        super().__init__(eager)
        self.package, self.signature = package, signature
        self._runner = runner
        self.keep: object = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.signature.matches(args, kwargs):
            # The program reads memory in the order it was exported with, and does not check: with another
            # layout it would silently compute wrong numbers.
            args = tuple(_dense(value) for value in args)
            given = {name: _dense(kwargs[name]) for name, *_ in self.signature.named}
            # The program has no autograd: nothing may be recorded.
            with torch.no_grad():
                return self._runner(*args, **given)
        if self.eager is None:
            wanted = [
                *(f"{d} of rank {n}" for d, n, _ in self.signature.positional),
                *(f"{name}: {d} of rank {n}" for name, d, n, _ in self.signature.named),
            ]
            raise ArtifactError(
                f"This compiled model takes ({', '.join(wanted)}). For other inputs load it with its class: "
                "octune.load(folder, factory=...)."
            )
        return self.eager(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        copied = CompiledModel(self._runner, self.package, self.signature, copy.deepcopy(self.eager, memo))
        copied.keep, copied.took = self.keep, self.took
        return copied


def dynamic_dims(tensor: torch.Tensor) -> tuple[int, ...]:
    """Which dimensions may vary: batch, sequence for tokens and hidden states, and the length of a signal
    behind its channels; images and volumes keep their size. The model may fix some of them.
    """
    return (0,) if tensor.ndim in (4, 5) else tuple(range(tensor.ndim))


# What is tried, one after the other: a signal's channels may be fixed (to one, say), and its length.
_TRIED: tuple[Free, ...] = (
    dynamic_dims,
    lambda tensor: tuple(dim for dim in dynamic_dims(tensor) if dim != 1 or tensor.ndim != 3),
    lambda tensor: dynamic_dims(tensor)[:2],
    lambda tensor: dynamic_dims(tensor)[:1],
    lambda tensor: (),
)


def export(model: nn.Module, call: Inputs) -> tuple[torch.export.ExportedProgram, Signature]:
    """Export with as many sizes free as the model allows: batch, sequence and length, or batch alone, or
    none.
    """
    call = _plain(call)
    failures: list[Exception] = []
    tried: set[tuple[tuple[int, ...], ...]] = set()
    for dynamic in _TRIED:
        dims = tuple(dynamic(tensor) for tensor in (*call.args, *call.kwargs.values()))
        if dims in tried:
            continue
        tried.add(dims)
        try:
            program = _export(model, call, dynamic)
            return program, Signature.of(call, dynamic).narrowed(_specialized(program))
        except Exception as error:
            failures.append(error)
            log.debug("export with other dimensions free", exc_info=True)
    first = failures[0]
    raise UnsupportedError(f"it cannot be exported ({type(first).__name__}: {summary(first)})") from first


def _specialized(program: torch.export.ExportedProgram) -> list[tuple[int | None, ...]]:
    """The sizes that the program takes for constants, None for those that are free: by position, then sorted
    by name. A model that computes with ``int(x.shape[0])`` has only the batch size that it was exported with.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    shapes = [
        tuple(size if isinstance(size, int) else size.node.maybe_as_int() for size in values[name].shape)
        for name in program.graph_signature.user_inputs
    ]
    args, kwargs = program.example_inputs
    order = sorted(range(len(kwargs)), key=list(kwargs).__getitem__)
    return [*shapes[: len(args)], *(shapes[len(args) + place] for place in order)]


def _plain(call: Inputs) -> Inputs:
    kwargs = {name: value for name, value in call.kwargs.items() if value is not None}
    if not all(isinstance(value, torch.Tensor) for value in (*call.args, *kwargs.values())):
        raise UnsupportedError("it is called with inputs that are not tensors")
    return Inputs(
        tuple(_dense(value) for value in call.args), {name: _dense(value) for name, value in kwargs.items()}
    )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in plain memory order. A dimension of size 1 may have any stride and still count as
    contiguous, but a compiled program takes strides literally: one-channel images made by ``array[:, None]``
    would be read as if channels came last.
    """
    return tensor.contiguous().view(-1).view(tensor.shape)


def _export(model: nn.Module, call: Inputs, dynamic: Free) -> torch.export.ExportedProgram:
    # A dimension of size 1 in the example would be taken for a constant.
    call = Inputs(
        tuple(_widened(t, dynamic(t)) for t in call.args),
        {n: _widened(t, dynamic(t)) for n, t in call.kwargs.items()},
    )
    auto = torch.export.Dim.AUTO

    def free(tensor: torch.Tensor) -> dict[int, Any]:
        return dict.fromkeys(dynamic(tensor), auto)

    shapes: Any = tuple(free(t) for t in call.args), {n: free(t) for n, t in call.kwargs.items()}
    flat = _by_parameter(model, shapes)
    with _quiet(), without_hints(), torch.no_grad():
        return torch.export.export(model, call.args, dict(call.kwargs), dynamic_shapes=flat, strict=False)


def _by_parameter(model: nn.Module, shapes: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """torch.export wants one entry for each argument, in the order of the call."""
    positional, named = shapes
    if not named:
        return positional
    names = [
        n
        for n, p in inspect.signature(model.forward).parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return {**dict(zip(names, positional, strict=False)), **named}


def _widened(tensor: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in dims:
        if tensor.shape[dim] == 1:
            tensor = torch.cat([tensor, tensor], dim)
    return tensor


def compile_model(model: nn.Module, call: Inputs) -> CompiledModel:
    """Native code for this machine; raises UnsupportedError, with a reason to show, when it cannot be
    made.
    """
    _need_compiler()
    program, signature = export(model, call)
    outputs = {
        name: layer.output
        for name, layer in model.named_modules()
        if isinstance(layer, Int8Layer) and layer.output
    }
    return compile_program(program, signature, outputs, model)


def compile_program(
    program: torch.export.ExportedProgram,
    signature: Signature,
    outputs: Mapping[str, tuple[float, int]],
    eager: nn.Module | None,
) -> CompiledModel:
    """Native code of an exported int8 model; ``outputs`` are scale and zero point of what layers return."""
    _need_compiler()
    lower(program, {f"{name}.weight_int8": output for name, output in outputs.items()})
    folder = Scratch()
    package, kept = folder.path / "compiled.pt2", NativeCache.here()
    key = None if kept.folder is None else digest_of_program(program, COMPILER)
    took = None if key is None else kept.take(key, package)
    if took is None:
        took = _compile(program, package)
        if key is not None:
            kept.keep(key, package, took)
    compiled = load_compiled(package, signature.to_json(), eager)
    # package and what was unpacked of it are deleted with the model
    compiled.keep, compiled.took = (compiled.keep, folder), took
    return compiled


def _need_compiler() -> None:
    """Raise before anything slow is done."""
    if probe_machine().compiler is None:
        raise UnsupportedError("there is no C++ compiler (install g++ to compile the winner)")


def _compile(program: torch.export.ExportedProgram, package: Path) -> float:
    """Compile into a file; returns the seconds it took."""
    from torch._inductor import aoti_compile_and_package

    begun = time.perf_counter()
    # the compiler folds constants, packed weights among them, only where nothing is differentiated
    with _quiet(), torch.no_grad():
        aoti_compile_and_package(program, package_path=str(package), inductor_configs=COMPILER)
    return time.perf_counter() - begun


def load_compiled(path: Path, signature: Mapping[str, Any], eager: nn.Module | None) -> CompiledModel:
    """A compiled package as a module."""
    from torch._inductor import aoti_load_package

    unpacked = Scratch()
    try:
        with _quiet(), _unpacking_to(unpacked.path):
            runner = aoti_load_package(str(path))
    except Exception as error:
        raise ArtifactError(f"{path} cannot be loaded: {summary(error)}") from error
    compiled = CompiledModel(runner, path, Signature.from_json(signature), eager)
    compiled.keep = unpacked
    return compiled


@contextlib.contextmanager
def _unpacking_to(folder: Path) -> Iterator[None]:
    """The loader unpacks packages into a folder of its own, which nobody removes if the process is killed."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What traces and compiles prints to both streams; what matters is raised as an exception."""
    logger = logging.getLogger("torch")
    level = logger.level
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
