"""Models by name, as processes of their own find them."""

from __future__ import annotations

import torch
from torch import nn


def large() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 10))


class Secretive(nn.Module):
    """Nothing says what its inputs look like."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


def secretive() -> nn.Module:
    return Secretive()
