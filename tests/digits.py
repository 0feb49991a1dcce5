"""A small real model for tests: scikit-learn's digits and a perceptron that reads them, trained in a
second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

SIZE = {
    "performance": {"compile": "never", "iterations": 1, "warmup": 0},
    "tuning": {"objective": "modelsize"},
}


def config(**tuning: Any) -> dict[str, Any]:
    """No compiler, hardly any timing, and size as the objective: on a model this small int8 is no faster, so
    speed decides by luck.
    """
    return {**SIZE, "tuning": {**SIZE["tuning"], **tuning}}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Digits:
    """Training and test images, and the state of a trained network."""

    train: torch.Tensor
    test: torch.Tensor
    labels: torch.Tensor
    state: dict[str, torch.Tensor]

    def model(self) -> nn.Sequential:
        """A trained network of its own."""
        model = network()
        model.load_state_dict({name: tensor.clone() for name, tensor in self.state.items()})
        return model.eval()

    def batches(self, count: int = 4, size: int = 16) -> list[torch.Tensor]:
        """Calibration batches."""
        return [self.train[i * size : (i + 1) * size] for i in range(count)]

    def labelled(self, size: int = 100) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Evaluation batches."""
        return [(self.test[i : i + size], self.labels[i : i + size]) for i in range(0, len(self.test), size)]

    def hits(self, model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return (model(self.test).argmax(1) == self.labels).float()

    def accuracy(self, model: Callable[[torch.Tensor], torch.Tensor]) -> float:
        return float(self.hits(model).mean())


@cache
def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:1200]), y[:1200]).backward()
        optimizer.step()
    torch.random.set_rng_state(state)
    return Digits(
        x[:1200],
        x[1200:],
        y[1200:],
        {name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
    )
