"""Octune in one minute: train a digit classifier, tune it to int8, save it, load it.

    python examples/quickstart.py                  # works in a temporary folder
    python examples/quickstart.py --output my-int8

The images are scikit-learn's 1,797 handwritten digits, so nothing is downloaded. The layers are wide enough
that int8 has something to gain; on a model of a few thousand weights fp32 is often as fast, and Octune then
hands fp32 back and says so.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import octune

Batch = tuple[torch.Tensor, torch.Tensor]
WIDTH, BATCH, TRAIN = 1024, 256, 1000


def network() -> nn.Sequential:
    """An ordinary PyTorch model: nothing in it knows about quantization."""
    return nn.Sequential(
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def batches(images: torch.Tensor, labels: torch.Tensor) -> list[Batch]:
    """What a DataLoader would yield: (inputs, label)."""
    return list(zip(images.split(BATCH), labels.split(BATCH), strict=True))


def train(model: nn.Module, data: list[Batch], epochs: int = 12) -> None:
    """A few seconds of training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for images, labels in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def main(output: Path) -> None:
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    training, test = batches(images[:TRAIN], labels[:TRAIN]), batches(images[TRAIN:], labels[TRAIN:])
    model = network()
    train(model, training)
    model.eval()

    # The one call. Calibration data shows what the activations look like; evaluation data decides, and must
    # be different data.
    result = octune.tune(
        model, calibration=training, evaluation=test, metric="accuracy", criterion=octune.Relative(0.01)
    )
    print(result)

    result.save(output, overwrite=True)
    # Needs neither the fp32 weights nor the data. A model of your own class is built by your code; a Hugging
    # Face model needs nothing.
    loaded = octune.load(output, factory=network)
    with torch.inference_mode():
        same = torch.equal(loaded(test[0][0]), result.model(test[0][0]))
    print(f"saved to {output}: {', '.join(sorted(path.name for path in output.iterdir()))}")
    print(f"loaded again, it returns the same answers: {same}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Octune in one minute.")
    parser.add_argument(
        "--output", type=Path, help="where to save the int8 model; a temporary folder if left out"
    )
    chosen = parser.parse_args().output
    with tempfile.TemporaryDirectory() as folder:
        main(chosen or Path(folder) / "digits-int8")
