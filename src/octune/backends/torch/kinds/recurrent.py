"""LSTMs, GRUs and plain recurrent layers: all layers and directions of one module at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from octune.backends.torch.kinds.base import Kind
from octune.backends.torch.layers import Layer
from octune.backends.torch.recurrence import finite, pack, run, run_in_float
from octune.calibration import TensorStats
from octune.errors import PlanError
from octune.int8 import Limit
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["GRU", "LSTM", "PlainRNN"]

State = Any  # a tensor, or the two of an LSTM


class Int8Recurrent(Layer):
    """Dynamic int8, in place of ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``. ``settings`` are their arguments.

    Tensors: of every weight matrix ``<name>_int8`` and ``<name>_scale``, and the biases under their names.
    """

    multiplies_int8 = True
    cell: str

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # What models ask an LSTM for, to make its first state.
        self.input_size, self.hidden_size, self.num_layers = (
            int(settings[name]) for name in ("input_size", "hidden_size", "num_layers")
        )
        self.bidirectional, self.batch_first, self.bias = (
            bool(settings[name]) for name in ("bidirectional", "batch_first", "bias")
        )
        self.dropout, self.proj_size = 0.0, 0
        self._packed: list[Any] | None = None
        self._key = ""

    def set_tensors(self, **tensors: torch.Tensor | None) -> Layer:
        super().set_tensors(**tensors)
        self._packed, digest = None, hashlib.sha256()
        for name, tensor in sorted(self.named_buffers()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        self._key = digest.hexdigest()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_packed": None}

    def flatten_parameters(self) -> None:
        """Models call this before they run; there is nothing to do."""

    def _suffixes(self) -> Iterator[str]:
        for layer in range(self.num_layers):
            yield from [f"l{layer}", f"l{layer}_reverse"][: 1 + self.bidirectional]

    def _weights(self) -> Iterator[torch.Tensor]:
        for suffix in self._suffixes():
            for matrix in ("ih", "hh"):
                yield self.get_buffer(f"weight_{matrix}_{suffix}_int8")
                yield self.get_buffer(f"weight_{matrix}_{suffix}_scale")
            for matrix in ("ih", "hh"):
                scale = self.get_buffer(f"weight_{matrix}_{suffix}_scale")
                yield self.get_buffer(f"bias_{matrix}_{suffix}") if self.bias else torch.zeros_like(scale)

    def forward(self, input: torch.Tensor | PackedSequence, hx: State = None) -> tuple[Any, State]:
        if isinstance(input, PackedSequence):
            x, sizes, order, back = input
            output, *last = self._run(x.float(), self._state(x, int(sizes[0]), hx, order), sizes)
            whole = PackedSequence(output, sizes, order, back)
            return whole, self._as_given(last if back is None else [p.index_select(1, back) for p in last])
        batch, x = (0 if self.batch_first else 1), input.float()
        if x.ndim == 3:
            output, *last = self._run(x, self._state(x, x.shape[batch], hx), None)
            return output, self._as_given(last)
        if hx is not None:
            hx = self._as_given([part.unsqueeze(1) for part in self._parts(hx)])
        x = x.unsqueeze(batch)
        output, *last = self._run(x, self._state(x, 1, hx), None)
        return output.squeeze(batch), self._as_given([part.squeeze(1) for part in last])

    def _parts(self, state: State) -> list[torch.Tensor]:
        return list(state) if self.cell == "lstm" else [state]

    def _as_given(self, parts: list[torch.Tensor]) -> State:
        return tuple(parts) if self.cell == "lstm" else parts[0]

    def _state(
        self, x: torch.Tensor, rows: int, hx: State, order: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        if hx is None:
            zeros = x.new_zeros(
                self.num_layers * (1 + self.bidirectional), rows, self.hidden_size, dtype=torch.float32
            )
            return [zeros, zeros] if self.cell == "lstm" else [zeros]
        state = [part.float() for part in self._parts(hx)]
        return state if order is None else [part.index_select(1, order) for part in state]

    def _run(
        self, x: torch.Tensor, state: list[torch.Tensor], batch_sizes: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        if torch.compiler.is_compiling():
            made: tuple[torch.Tensor, ...] = torch.ops.octune.recurrent.default(
                x, state, list(self._weights()), self.cell, self.bidirectional, self.batch_first, self._key
            )
            return made[: 1 + len(state)]
        how = (batch_sizes, self.cell, self.bidirectional, self.batch_first)
        if not finite(x, *state):
            return run_in_float(x, state, list(self._weights()), *how)  # NaN in, NaN out
        if self._packed is None:
            self._packed = pack(list(self._weights()), self.cell)
        return run(x, state, self._packed, *how)


class Int8LSTM(Int8Recurrent):
    kind = "int8_lstm"
    cell = "lstm"


class Int8GRU(Int8Recurrent):
    kind = "int8_gru"
    cell = "gru"


class Int8RNN(Int8Recurrent):
    kind = "int8_rnn"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.nonlinearity = str(settings["nonlinearity"])
        self.cell = f"rnn_{self.nonlinearity}"


class Recurrent(Kind):
    """Shared by recurrent layers. The range of the hidden state is taken at every step: it is in no
    calibration data, and one for all steps would have no faster kernel.
    """

    module: nn.RNNBase
    arguments: ClassVar[tuple[str, ...]] = (
        "input_size",
        "hidden_size",
        "num_layers",
        "bidirectional",
        "batch_first",
        "bias",
    )

    @property
    def obstacle(self) -> str:
        projected = self.module.proj_size > 0
        return super().obstacle or (
            "its hidden state is projected (proj_size), for which there is no int8 kernel"
            if projected
            else ""
        )

    @property
    def weights(self) -> list[nn.Parameter]:
        names = [name for name in self.module._flat_weights_names if name.startswith("weight")]
        stored = [self.module._parameters.get(name) for name in names]
        return [] if None in stored else stored  # type: ignore[return-value]

    def layer(
        self,
        scheme: Scheme,
        stats: TensorStats | None,
        output: TensorStats | None = None,
        *,
        limit: Limit,
    ) -> Layer:
        if scheme.mode not in self.layers:
            raise PlanError(f"A module of the kind {self.name} cannot run as {scheme}.")
        tensors: dict[str, torch.Tensor] = {}
        for name in self.module._flat_weights_names:
            value = self.module.get_parameter(name).detach().float()
            if not name.startswith("weight"):
                tensors[name] = value
                continue
            made = repairs_of(scheme).int8_weight(value.numpy(), 1, scheme.granularity, limit)
            tensors[f"{name}_int8"] = torch.from_numpy(made.values)
            tensors[f"{name}_scale"] = torch.from_numpy(made.scales).expand(value.shape[0])
        settings = {name: getattr(self.module, name) for name in self.arguments}
        return self.layers[str(scheme.mode)](**settings).set_tensors(**tensors)


class LSTM(Recurrent):
    """``nn.LSTM``."""

    name = "lstm"
    plain = nn.LSTM
    layers: ClassVar = {"dynamic": Int8LSTM}


class GRU(Recurrent):
    """``nn.GRU``."""

    name = "gru"
    plain = nn.GRU
    layers: ClassVar = {"dynamic": Int8GRU}


class PlainRNN(Recurrent):
    """``nn.RNN``."""

    name = "rnn"
    plain = nn.RNN
    layers: ClassVar = {"dynamic": Int8RNN}
    arguments: ClassVar[tuple[str, ...]] = (*Recurrent.arguments, "nonlinearity")
