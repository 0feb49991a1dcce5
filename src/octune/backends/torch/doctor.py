"""Which number formats are fast in PyTorch on this machine, measured on one linear layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from octune.backends.terms import SelfTest
from octune.backends.torch.kinds import Linear
from octune.calibration import Observer
from octune.cost.latency import interleaved
from octune.int8 import limit_for
from octune.machine import probe_machine
from octune.plan import Scheme

__all__ = ["self_test"]


def self_test() -> SelfTest:
    """The speed of every scheme relative to fp32."""
    linear = nn.Linear(768, 3072).requires_grad_(False)
    x = torch.randn(128, 768)
    observer = Observer()
    observer.update(np.asarray(x))
    stats = observer.stats()
    schemes = {"int8 static": Scheme.int8(), "int8 dynamic": Scheme.int8("dynamic"), "bf16": Scheme.bf16()}
    layers: dict[str, nn.Module] = {
        name: Linear(linear).layer(scheme, stats, limit=limit_for(portable=True))
        for name, scheme in schemes.items()
        if probe_machine().runs(scheme.dtype)
    }

    def call(layer: nn.Module) -> Callable[[], object]:
        return lambda: layer(x)

    with torch.inference_mode():
        times = interleaved(
            {name: call(layer) for name, layer in {"fp32": linear, **layers}.items()}, warmup=5, iterations=30
        )
    return SelfTest({name: times["fp32"].median_ms / times[name].median_ms for name in layers})
