"""Ranges for every row: a row with large numbers leaves the levels of the others alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends import Settings
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import compile_model
from octune.backends.torch.kinds import Linear
from octune.int8 import Limit
from octune.machine import probe_machine
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated

TOKEN, DYNAMIC = Scheme.int8("token"), Scheme.int8("dynamic")
needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs a C++ compiler (g++)")


def rows_of_two_sizes() -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(2, 10, 64)
    x[:, 0] *= 100  # such as the first token of a sentence
    return x


def test_a_large_row_does_not_spoil_the_others() -> None:
    x, module = rows_of_two_sizes(), nn.Linear(64, 32).requires_grad_(False)
    wanted = module(x)[:, 1:]
    errors = {
        scheme: float((Linear(module).layer(scheme, None, limit=Limit.PAIRS)(x)[:, 1:] - wanted).norm())
        for scheme in (TOKEN, DYNAMIC)
    }
    assert errors[TOKEN] < 0.02 * float(wanted.norm())
    assert errors[TOKEN] < 0.05 * errors[DYNAMIC]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    x, module = rows_of_two_sizes(), nn.Linear(64, 32).requires_grad_(False)
    layer = Linear(module).layer(TOKEN, None, limit=Limit.PAIRS)
    assert torch.equal(layer(x)[:, 3], layer(x[:, 3]))


def test_rows_without_numbers_and_calls_without_rows() -> None:
    module = nn.Linear(64, 32).requires_grad_(False)
    layer = Linear(module).layer(TOKEN, None, limit=Limit.PAIRS)
    x = rows_of_two_sizes()[0]
    x[1], x[2, 5] = 0.0, float("nan")
    got = layer(x)
    assert torch.allclose(got[1], module.bias)
    assert got[2].isnan().all()
    assert got.isnan().sum() == 32
    assert layer(torch.zeros(0, 64)).shape == (0, 32)


def test_harm_sees_it() -> None:
    backend = TorchBackend(nn.Sequential(nn.Linear(64, 32)).eval(), Settings())
    ranges = calibrated(backend, [rows_of_two_sizes()])
    call = backend.split(rows_of_two_sizes())[0]
    harm = backend.harm({"0": [TOKEN, DYNAMIC]}, ranges, [call])
    assert harm["0", TOKEN] < harm["0", DYNAMIC]


@needs_compiler
@pytest.mark.slow
def test_compiled() -> None:
    backend = TorchBackend(nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8)).eval(), Settings())
    ranges = calibrated(backend, [rows_of_two_sizes()])
    int8 = backend.apply(Plan({"0": TOKEN, "2": TOKEN}), ranges)
    call = backend.split(rows_of_two_sizes())[0]
    compiled = compile_model(int8, call)
    wanted, got = backend.run(int8, call)["output"], backend.run(compiled, call)["output"]
    assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max()
