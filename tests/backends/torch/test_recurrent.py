"""LSTMs and GRUs in int8: the contract, all ways of calling, compiled, saved; and what is only listed."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

from octune.backends import Settings
from octune.backends.torch import TorchBackend, recurrence
from octune.backends.torch.compiled import compile_model
from octune.backends.torch.kinds import kind_of
from octune.int8 import Limit
from octune.machine import probe_machine
from octune.plan import Plan, Scheme
from tests.backends.contract import BackendContract, Subject, calibrated, int8_plan

INT8 = Scheme.int8("dynamic")
MODULES = [nn.LSTM, nn.GRU, nn.RNN, partial(nn.RNN, nonlinearity="relu")]
needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")


class Tagger(nn.Module):
    """A label for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 32, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.lstm.flatten_parameters()
        zeros = torch.zeros(2 * self.lstm.num_layers, ids.shape[0], self.lstm.hidden_size)
        output, _ = self.lstm(self.embed(ids), (zeros, zeros))
        return self.head(output)


class Listener(nn.Module):
    """What was heard, from the last state of a GRU that has the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 48, bias=False)
        self.head = nn.Linear(48, 10)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(sound.transpose(0, 1))[1][-1])


class Counter(nn.Module):
    """Plain layers of both kinds, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(12, 32, 2, batch_first=True, bidirectional=True)
        self.relu = nn.RNN(64, 32, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.rnn(x)[0])[0])


def tagger() -> Subject:
    torch.manual_seed(0)
    return Subject(Tagger().eval(), [(torch.randint(0, 50, (6, 11)), 0) for _ in range(2)], Tagger)


def listener() -> Subject:
    torch.manual_seed(0)
    return Subject(Listener().eval(), [(torch.randn(6, 14, 12), 0) for _ in range(2)], Listener)


def counter() -> Subject:
    torch.manual_seed(0)
    return Subject(Counter().eval(), [(torch.randn(6, 14, 12), 0) for _ in range(2)], Counter)


class TestTagger(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return tagger()


class TestListener(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return listener()


class TestCounter(BackendContract):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        return counter()


@pytest.mark.parametrize(("subject", "name"), [(tagger, "lstm"), (listener, "gru")])
def test_it_is_an_op_under_its_own_name_and_its_harm_is_seen_in_whatever_is_read(
    subject: Any, name: str
) -> None:
    """The listener reads the last state alone, the second thing that a GRU returns."""
    made = subject()
    backend = TorchBackend(made.model, Settings())
    ranges = calibrated(backend, made.batches)
    (op,) = [op for op in backend.ops() if op.kind in ("lstm", "gru")]
    assert op.name == name
    assert op.parameters == sum(p.numel() for n, p in made.model.named_parameters() if f"{name}.weight" in n)
    call = backend.split(made.batches[0])[0]
    predicted = backend.harm({name: [INT8]}, ranges, [call])[name, INT8]
    wanted, got = (
        next(iter(backend.run(model, call).values()))
        for model in (made.model, backend.apply(Plan({name: INT8}), ranges))
    )
    measured = ((got - wanted) ** 2).sum() / ((wanted - wanted.mean(axis=0)) ** 2).sum()
    assert 0.1 * measured < predicted < 10 * measured


@pytest.fixture(params=[True, False], ids=["whole layers", "step by step"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """PyTorch's own kernels, where this one has them, and what is used where it has none."""
    if not request.param:
        monkeypatch.setattr(recurrence, "whole_layers", lambda cell: False)
    elif not recurrence.whole_layers("lstm"):
        pytest.skip("this version of torch has no int8 kernels for whole layers any more")
    return bool(request.param)


def both(
    module: nn.Module, granularity: Any = "per_channel", limit: Limit = Limit.PAIRS
) -> tuple[nn.Module, nn.Module]:
    kind: Any = kind_of(module)
    return module, kind.layer(Scheme.int8("dynamic", granularity=granularity), None, limit=limit)


def close(got: Any, wanted: Any) -> None:
    for one, other in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        assert one.shape == other.shape
        assert (one - other).float().norm() < 0.03 * other.float().norm()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("make", MODULES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_it_returns_what_float_returns(make: Any, batch_first: bool, bidirectional: bool, bias: bool) -> None:
    torch.manual_seed(0)
    module = make(20, 24, 2, batch_first=batch_first, bidirectional=bidirectional, bias=bias)
    module, int8 = both(module.requires_grad_(False).eval())
    x = torch.randn(7, 7, 20)
    close(int8(x), module(x))
    close(int8(x[0]), module(x[0]))  # one sequence, without a batch
    state = torch.randn(4 if bidirectional else 2, 7, 24)
    hx = (state, state.flip(0)) if make is nn.LSTM else state
    close(int8(x, hx), module(x, hx))
    close(int8(input=x, hx=hx), module(x, hx))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("make", MODULES)
@pytest.mark.parametrize("sorted_by_length", [True, False])
def test_packed_sequences(make: Any, sorted_by_length: bool) -> None:
    torch.manual_seed(0)
    module, int8 = both(make(20, 24, bidirectional=True, batch_first=True).requires_grad_(False))
    lengths = torch.tensor([9, 6, 2] if sorted_by_length else [2, 9, 6])
    packed = pack_padded_sequence(
        torch.randn(3, 9, 20), lengths, batch_first=True, enforce_sorted=sorted_by_length
    )
    (got, state), (wanted, other) = int8(packed), module(packed)
    assert isinstance(got, PackedSequence)
    close(pad_packed_sequence(got), pad_packed_sequence(wanted))
    close(state, other)


class Padded(nn.Module):
    """Sequences of several lengths in one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0])


def test_a_model_that_packs_its_sequences_is_looked_at_and_quantized() -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 9, 8), "lengths": torch.tensor([3, 9, 5, 2])}
    backend = TorchBackend(Padded().eval(), Settings())
    ranges = calibrated(backend, [batch])
    plan, call = int8_plan(backend, ranges), backend.split(batch)[0]
    assert plan["gru"] == INT8
    assert backend.harm({"gru": [INT8]}, ranges, [call])["gru", INT8] > 0
    assert backend.alone(backend.ops()[0], INT8, ranges)() is not None
    (wanted,), (got,) = (
        backend.run(model, call).values() for model in (Padded().eval(), backend.apply(plan, ranges))
    )
    assert got.shape == wanted.shape


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("make", MODULES)
def test_nan_in_is_nan_out_for_the_sequence_that_has_it(make: Any) -> None:
    torch.manual_seed(0)
    module, int8 = both(make(8, 16, batch_first=True).requires_grad_(False))
    x = torch.randn(2, 5, 8)
    x[0, 2, 3] = float("nan")
    got, wanted = int8(x)[0], module(x)[0]
    assert torch.equal(got.isnan(), wanted.isnan())
    assert 0 < got.isnan().sum() < got.numel()


def test_what_has_no_int8_is_listed_with_the_reason() -> None:
    (op,) = TorchBackend(nn.Sequential(nn.LSTM(4, 8, proj_size=2)), Settings()).ops()
    assert op.schemes == (Scheme.fp32(),)
    assert "proj_size" in op.note


@pytest.mark.parametrize("subject", [tagger, listener, counter])
def test_a_saved_model_loads_without_its_class_also_where_its_weights_must_be_smaller(
    subject: Any, tmp_path: Path
) -> None:
    made = subject()
    backend = TorchBackend(made.model, Settings(portable=False))
    backend.limit = Limit.NONE  # as on a CPU that adds exactly
    ranges = calibrated(backend, made.batches)
    int8, call = backend.apply(int8_plan(backend, ranges), ranges), backend.split(made.batches[0])[0]
    metadata = backend.writer()(int8, tmp_path)
    answers: list[dict[str, Any]] = [
        backend.run(int8, call),
        *(
            backend.run(
                TorchBackend.load(tmp_path, metadata, factory, limit_again=limit_again),  # type: ignore[arg-type]
                call,
            )
            for limit_again in (False, True)
            for factory in (None, made.factory)
        ),
    ]
    all_bits, program, layers, limited_program, limited_layers = (next(iter(a.values())) for a in answers)
    np.testing.assert_array_equal(program, all_bits)
    np.testing.assert_array_equal(layers, all_bits)
    np.testing.assert_array_equal(limited_program, limited_layers)
    assert not np.array_equal(limited_layers, all_bits)
    assert np.abs(limited_layers - all_bits).max() < 0.2 * np.abs(all_bits).max()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "other"),
    [
        (tagger, torch.randint(0, 50, (1, 17))),
        (listener, torch.randn(3, 9, 12)),
        (counter, torch.randn(3, 9, 12)),
    ],
    ids=["tagger", "listener", "counter"],
)
def test_compiled_it_takes_any_batch_and_length(subject: Any, other: torch.Tensor) -> None:
    made = subject()
    backend = TorchBackend(made.model, Settings())
    ranges = calibrated(backend, made.batches)
    int8 = backend.apply(int8_plan(backend, ranges), ranges)
    compiled = compile_model(int8, backend.split(made.batches[0])[0])
    for batch in (made.batches[0], (other, 0)):
        call = backend.split(batch)[0]
        assert compiled.signature.matches(call.args, call.kwargs)
        (wanted,), (got,) = backend.run(int8, call).values(), backend.run(compiled, call).values()
        np.testing.assert_allclose(got, wanted, atol=0.02 * np.abs(wanted).max())


def test_step_by_step_it_says_nothing_about_what_is_deprecated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "whole_layers", lambda cell: False)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, int8 = both(nn.LSTM(8, 16, batch_first=True).requires_grad_(False))
            int8(torch.randn(2, 5, 8))
    finally:
        torch.set_warn_always(False)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("make", MODULES)
def test_a_first_state_of_any_size_is_read_in_its_own_range(make: Any) -> None:
    """What a layer computes itself is within one."""
    torch.manual_seed(0)
    module, int8 = both(make(8, 16, batch_first=True).requires_grad_(False))
    x, state = torch.randn(3, 5, 8), 20 * torch.randn(1, 3, 16)
    hx = (state, state.flip(0)) if make is nn.LSTM else state
    close(int8(x, hx), module(x, hx))


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_both_ways_give_the_same_but_for_rounding(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not recurrence.whole_layers("lstm"):
        pytest.skip("this version of torch has no int8 kernels for whole layers any more")
    torch.manual_seed(0)
    module = make(96, 64, 2, batch_first=True, bidirectional=True).requires_grad_(False)
    x = torch.randn(2, 9, 96)
    whole = both(module)[1](x)[0]
    monkeypatch.setattr(recurrence, "whole_layers", lambda cell: False)
    in_steps, wanted = both(module)[1](x)[0], module(x)[0]
    assert not torch.equal(in_steps, whole)
    assert (in_steps - wanted).norm() < 1.2 * (whole - wanted).norm()


@pytest.mark.parametrize("subject", [tagger, listener])
def test_saved_with_one_kind_of_kernels_it_runs_on_the_other(
    subject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = subject()
    backend = TorchBackend(made.model, Settings())
    ranges = calibrated(backend, made.batches)
    int8, call = backend.apply(int8_plan(backend, ranges), ranges), backend.split(made.batches[0])[0]
    metadata = backend.writer()(int8, tmp_path)
    (wanted,) = backend.run(int8, call).values()
    monkeypatch.setattr(recurrence, "whole_layers", lambda cell: False)
    answers = [
        next(iter(backend.run(TorchBackend.load(tmp_path, metadata, factory), call).values()))
        for factory in (None, made.factory)
    ]
    np.testing.assert_array_equal(*answers)
    assert 0 < np.abs(answers[0] - wanted).max() < 0.05 * np.abs(wanted).max()


def test_programs_of_one_key_do_not_share_their_weights() -> None:
    """A file says what its key is, and may say that of another one. Weights are packed once for a program."""

    def weights(seed: int) -> list[torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        matrix = partial(torch.randint, -60, 60, (4 * 8, 8), dtype=torch.int8, generator=random)
        scales, bias = torch.full((4 * 8,), 0.01), torch.zeros(4 * 8)
        return [matrix(), scales, matrix(), scales.clone(), bias, bias.clone()]

    x, state = torch.randn(1, 3, 8), [torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)]
    call = partial(torch.ops.octune.recurrent.default, cell="lstm", bidirectional=False, batch_first=True)
    mine, other = weights(0), weights(1)
    outputs = [call(x, state, held, key="the same")[0] for held in (mine, other, mine)]
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
