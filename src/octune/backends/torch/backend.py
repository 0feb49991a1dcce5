"""The PyTorch backend: swaps modules for trials, compiles the winner."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octune.backends.base import Backend
from octune.backends.batches import Inputs, Mask, real_rows
from octune.backends.opened import Opened, Source
from octune.backends.terms import (
    OUTPUT,
    Finalist,
    Outputs,
    Recompiled,
    SelfTest,
    Settings,
    Visit,
    Writer,
    notes_on,
)
from octune.backends.torch import storage
from octune.backends.torch.batches import Trying, named_outputs, the_input
from octune.backends.torch.batchnorm import fold_batchnorms
from octune.backends.torch.copying import light_copy, private_copy, replace_module
from octune.backends.torch.discover import Found, discover
from octune.backends.torch.doctor import self_test
from octune.backends.torch.functions.find import Float
from octune.backends.torch.functions.install import with_functions
from octune.backends.torch.harm import first_order_harm
from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import KINDS
from octune.backends.torch.layers import Layer
from octune.backends.torch.opened import OpenedTorch
from octune.backends.torch.openvino import on_openvino
from octune.backends.torch.recompile import recompile
from octune.backends.torch.sources import open_model
from octune.backends.torch.work import counted
from octune.backends.torch.wrappers import unwrapped
from octune.calibration import Ranges
from octune.coverage import Work
from octune.errors import DataError, ModelError, UnsupportedError, plural, short
from octune.harm import probe
from octune.int8 import limit_for
from octune.plan import Op, Plan, Scheme

__all__ = ["TorchBackend"]

PROBE_ROWS = 8
# Parameters of layers that harm() keeps in memory from one batch to the next; those of larger models are made
# again.
KEPT_PARAMETERS = 200_000_000


class TorchBackend(Backend):
    """Works on an unmodified ``nn.Module``: no stubs, no fusion by hand, no tracing until the very end."""

    name = "pytorch"
    fp32_forms = frozenset({"compiled", "openvino"})
    form_choices = ("native", "openvino")
    limits_again = True

    @classmethod
    def accepts(cls, model: object) -> bool:
        return isinstance(model, nn.Module)

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        model, wrapping = unwrapped(model)
        if any(isinstance(module, Layer) for module in model.modules()):
            raise ModelError("The model is already quantized by Octune. Give the fp32 model.")
        if settings.inputs or settings.outputs:
            raise UnsupportedError(
                "model.inputs and model.outputs name tensors of a graph; a PyTorch model takes what its "
                "forward takes. Remove them."
            )
        self._settings = settings
        self.limit = limit_for(portable=settings.portable)
        self._threads_before = torch.get_num_threads()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._origin = storage.Origin.of(model, settings.source)
        self._reference, notes = private_copy(model)
        self._notes = [*wrapping, *notes]
        # What candidates are made from: the reference, or the reference with BatchNorms folded.
        self._prepared = self._reference
        self._found: list[Found] = discover(self._prepared)
        # Products that stay float, because no kind of op is like them: known once a batch has been run.
        self._floats: list[Float] = []
        self._splitter = Trying(self._reference)
        self._example: Inputs | None = None

    # -- what is there ---------------------------------------------------------------------------------------

    def fp32_model(self) -> nn.Module:
        return copy.deepcopy(self._reference)

    @property
    def notes(self) -> Sequence[str]:
        return [*self._notes, *notes_on(self.ops(), ", ".join(kind.name for kind in KINDS))]

    def ops(self) -> tuple[Op, ...]:
        floats = (Op(f.name, f.kind, (Scheme.fp32(),), f.weight.numel(), note=f.reason) for f in self._floats)
        return (*(found.op for found in self._found), *floats)

    def split(self, batch: Any) -> tuple[Inputs, Any]:
        return self._splitter(batch)

    def batch_size(self, inputs: Inputs) -> int:
        return inputs.batch_size

    def resized(self, inputs: Inputs, samples: int) -> Inputs:
        return inputs.resized(samples)

    def restored(self, inputs: Inputs) -> Inputs:
        return self._splitter.fit(inputs.args, inputs.kwargs)

    # -- look ------------------------------------------------------------------------------------------------

    def observe(self, batches: Iterable[Inputs], visit: Visit) -> None:
        for call in batches:
            inputs = [
                found.module.register_forward_pre_hook(self._watch(found, call.mask, visit), with_kwargs=True)
                for found in self._found
            ]
            outputs = [
                found.module.register_forward_hook(self._watch_output(found.op, visit))
                for found in self._found
                if found.kind.wants_output
            ]
            try:
                with hooks([*inputs, *outputs]), torch.inference_mode():
                    call(self._prepared)
            except DataError:
                raise
            except Exception as error:
                raise DataError(
                    f"The model cannot be run on the calibration data: {type(error).__name__}: {error}"
                ) from error

    def work(self, inputs: Inputs) -> Work:
        return counted(
            self._prepared, self._found, inputs, {float_.name: float_.weight for float_ in self._floats}
        )

    def prepare(self, inputs: Inputs) -> None:
        """Make modules of functions, fold BatchNorms, and look at the ops again."""
        self._example = inputs
        try:
            self._prepared, self._floats = with_functions(self._reference, inputs)
            self._prepared, folded = fold_batchnorms(self._prepared, inputs)
        except Exception as error:
            raise DataError(
                f"The model cannot be run on the calibration data: {type(error).__name__}: {error}"
            ) from error
        if folded:
            self._notes.append(f"folded into convolutions: {plural(len(folded), 'BatchNorm')}")
        self._found = discover(self._prepared)

    @staticmethod
    def _watch(found: Found, mask: Mask | None, visit: Visit) -> Any:
        name, kind = found.op.name, found.kind

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = the_input(args, kwargs)
            shape = tuple(x.shape)
            if not kind.has_range or not x.is_floating_point():
                visit(name, None, shape=shape)
                return
            array = x.detach().float().numpy()
            if (real := real_rows(array, mask)) is not None:
                visit(name, real, shape=shape)
            else:
                visit(name, array, shape=shape, channel_axis=kind.channel_axis)

        return hook

    @staticmethod
    def _watch_output(op: Op, visit: Visit) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
            # The extremes alone: the sum of two convolutions is quantized by them in the compiled form.
            visit(
                op.name + OUTPUT,
                torch.stack(torch.aminmax(output.detach().float())).numpy(),
                shape=tuple(output.shape),
            )

        return hook

    def harm(
        self,
        candidates: Mapping[str, Sequence[Scheme]],
        ranges: Ranges,
        batches: Sequence[Inputs],
        only: Collection[str] | None = None,
    ) -> dict[tuple[str, Scheme], float]:
        found = {f.op.name: f for f in self._found}
        able = {name: schemes for name, schemes in candidates.items() if schemes and name in found}
        wanted = {name: schemes for name, schemes in able.items() if only is None or name in only}
        calls = [call.resized(min(PROBE_ROWS, call.batch_size)) for call in batches]

        def make(name: str, scheme: Scheme) -> Layer:
            return self._layer(found[name], scheme, ranges)

        if (
            sum(found[name].op.parameters * len(schemes) for name, schemes in wanted.items())
            <= KEPT_PARAMETERS
        ):
            make = functools.cache(make)  # every batch needs them again
        values = first_order_harm(
            self._prepared, {name: found[name].module for name in able}, wanted, make, calls
        )
        return probe(self, candidates, ranges, calls, only) if values is None else values

    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> Callable[[], object]:
        found = next(f for f in self._found if f.op.name == op.name)
        layer = found.module if scheme.dtype == "fp32" else self._layer(found, scheme, ranges)
        x = found.kind.example(ranges[op.name].shape)
        return torch.inference_mode()(functools.partial(layer, x))

    # -- act -------------------------------------------------------------------------------------------------

    def _layer(self, found: Found, scheme: Scheme, ranges: Ranges) -> Layer:
        stats, output = ranges.get(found.op.name), ranges.get(found.op.name + OUTPUT)
        return found.kind.layer(scheme, stats, output, limit=self.limit)

    def apply(self, plan: Plan, ranges: Ranges) -> nn.Module:
        plan.check(self.ops())
        replaced = [found for found in self._found if plan.get(found.op.name, Scheme.fp32()).dtype != "fp32"]
        tied = {
            id(p)
            for found in self._found
            if found not in replaced
            for p in found.module.parameters(recurse=False)
        }
        model = light_copy(
            self._prepared,
            [f.module for f in replaced if tied.isdisjoint(map(id, f.module.parameters(recurse=False)))],
        )
        for found in replaced:
            replace_module(
                model, model.get_submodule(found.path), self._layer(found, plan[found.op.name], ranges)
            )
        return model.eval()

    def run(self, model: nn.Module, inputs: Inputs) -> Outputs:
        with torch.inference_mode():
            return named_outputs(inputs(model))

    def finalists(self, plan: Plan, ranges: Ranges, inputs: Inputs) -> Iterator[Finalist]:
        forms = self._settings.forms or ("native",)
        if "openvino" in forms and (made := self._on_openvino(plan, ranges, inputs)) is not None:
            yield Finalist("openvino", made)
        if "native" in forms:
            from octune.backends.torch.compiled import compile_model  # imports the compiler: seconds

            native = compile_model(self.apply(plan, ranges), inputs)
            yield Finalist("compiled", native, native.took)

    def _on_openvino(self, plan: Plan, ranges: Ranges, inputs: Inputs) -> nn.Module | None:
        """A plan on OpenVINO; None with a note where that cannot be made."""
        try:
            eager = self.apply(plan, ranges)
            made = on_openvino(self._reference, eager, plan, ranges, inputs, self._settings)
        except UnsupportedError as error:
            self._note(f"the model was not tried on OpenVINO: {error}")
            return None
        if made.in_fp32:
            self._note(f"on OpenVINO these ops are fp32, whatever the plan says: {short(made.in_fp32)}")
        return made

    def _note(self, note: str) -> None:
        self._notes += [note] if note not in self._notes else []

    @contextlib.contextmanager
    def capture(self, model: nn.Module) -> Iterator[list[Inputs]]:
        seen: list[Inputs] = []

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not seen:
                seen.append(self._splitter.call(args, dict(kwargs)))

        with hooks([model.register_forward_pre_hook(hook, with_kwargs=True)]):
            yield seen

    def undo_user_changes(self, model: nn.Module) -> nn.Module:
        return model.eval()

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._reference.state_dict().items()):
            digest.update(name.encode())
            digest.update(
                tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            )
        return digest.hexdigest()

    def size(self, model: nn.Module) -> int:
        return storage.weight_bytes(model)

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)

    # -- keep ------------------------------------------------------------------------------------------------

    def writer(self) -> Writer:
        origin, example = self._origin, self._example
        return lambda model, folder: storage.save(model, origin, folder, example)

    @classmethod
    def load(
        cls,
        folder: Path,
        metadata: Mapping[str, Any],
        factory: Callable[[], nn.Module] | None = None,
        *,
        limit_again: bool = False,
        trusted: bool = False,
    ) -> nn.Module:
        return storage.load(folder, metadata, factory, limit_again=limit_again, trusted=trusted)

    @classmethod
    def recompile(
        cls, folder: Path, metadata: Mapping[str, Any], model: nn.Module, example: Callable[[], Inputs]
    ) -> Recompiled:
        return recompile(folder, metadata, model, example)

    @classmethod
    def open(cls, source: str) -> nn.Module:
        return open_model(source)

    @classmethod
    def opened(cls, model: nn.Module, source: Source) -> Opened:
        return OpenedTorch(model, source)

    @classmethod
    def to_onnx(cls, model: nn.Module, settings: Settings, batch: Any) -> tuple[Any, Settings]:
        from octune.backends.torch.to_onnx import to_onnx  # imports ONNX, which need not be installed

        return to_onnx(model, batch), settings

    @classmethod
    def converted_name(cls, node: str) -> str:
        from octune.backends.torch.to_onnx import module_of

        return module_of(node)

    @classmethod
    def self_test(cls) -> SelfTest:
        return self_test()

    def environment(self) -> dict[str, Any]:
        return {**super().environment(), "torch": str(torch.__version__), "threads": torch.get_num_threads()}
