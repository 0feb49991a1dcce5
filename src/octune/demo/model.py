"""The demo's model: a six-layer BERT, mean pooling, a linear head. Imports torch, so import it only where
it is needed.

from octune.demo.model import build

model = build()
logits = model(input_ids, attention_mask)       # (batch, 2): negative, positive
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from octune.demo.fetch import atomic
from octune.demo.sentiment import (
    REGULARISATION,
    SnippetBatches,
    encoder_folder,
    head_path,
    head_recipe,
    load_snippets,
    split_snippets,
)
from octune.errors import ModelError, WorkspaceError

__all__ = ["SentimentClassifier", "build", "train_head"]

# These of the file's tensors are not weights of the encoder: mean pooling replaces the pooler, and positions
# are computed.
UNUSED = {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}


class SentimentClassifier(nn.Module):
    """Says how negative and how positive a text is.

    SentimentClassifier(BertConfig.from_json_file("config.json"))(input_ids, attention_mask).argmax(1)
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, 2)

    def embed(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """The mean of the token states of each text, padding left out: (batch, hidden)."""
        output = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        states: Tensor = output.last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(states.dtype)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1.0)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        logits: Tensor = self.head(self.embed(input_ids, attention_mask, token_type_ids))
        return logits


def build() -> SentimentClassifier:
    """The classifier in fp32 and evaluation mode, with the encoder's weights, and the trained head if there
    is one.

        model = build()         # as a string for configurations: "octune.demo.model:build"

    Without a trained head (see `train_head`) the head is random, but the same every time: the architecture
    for weights that are loaded from elsewhere.
    """
    folder = encoder_folder()
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        torch.manual_seed(0)
        model = SentimentClassifier(BertConfig.from_json_file(str(folder / "config.json")))
    weights = {
        name: value for name, value in load_file(folder / "model.safetensors").items() if name not in UNUSED
    }
    try:
        model.encoder.load_state_dict(weights)
        if head_path().is_file():
            model.head.load_state_dict(load_file(head_path()))
    except RuntimeError as error:
        raise ModelError(
            f"The demo's cached weights do not fit the model: {error}. Remove {folder.parent.parent} and "
            "start again."
        ) from error
    return model.eval()


def train_head(*, force: bool = False) -> None:
    """Trains the head on the frozen encoder's embeddings and keeps it in the cache; does nothing if it is
    there.

        train_head()

    Logistic regression on standardised embeddings, the standardisation folded into the linear layer. It draws
    no random numbers: the same recipe makes the same head (except for rounding, which differs between
    processors). Ten seconds on two cores, nearly all of it for the embeddings.
    """
    path = head_path()
    if path.is_file() and not force:
        return
    weight, bias = _fit(*_embed_train_split(build()))
    try:
        with atomic(path) as partial:
            partial.write_bytes(save({"weight": weight, "bias": bias}, {"recipe": json.dumps(head_recipe())}))
    except OSError as error:
        raise WorkspaceError(
            f"The demo's head cannot be written to {path.parent}: {error.strerror}. Set OCTUNE_CACHE to a "
            "folder that can be written to."
        ) from error


def _embed_train_split(model: SentimentClassifier) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    batches = SnippetBatches(
        split_snippets(load_snippets(), train=head_recipe()["train_size"]).train,
        batch_size=32,
        by_length=True,
    )
    console = Console(stderr=True)
    steps = track(
        batches,
        "Training the demo's head",
        total=len(batches),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with torch.inference_mode():
        embedded = [model.embed(**inputs).numpy() for inputs, _ in steps]
    return np.concatenate(embedded), batches.labels


def _fit(
    embeddings: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Weight (2, hidden) and bias (2) of a linear layer whose softmax is the fitted regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(embeddings.astype(np.float64))
    # Three dimensions of this encoder are constant except for rounding: divided by their spread they would
    # get enormous weights.
    scaler.scale_[scaler.scale_ < 1e-3 * np.median(scaler.scale_)] = np.inf
    regression = LogisticRegression(C=REGULARISATION, max_iter=1000).fit(scaler.transform(embeddings), labels)
    weight = regression.coef_[0] / scaler.scale_
    bias = regression.intercept_[0] - weight @ scaler.mean_
    # softmax([-z/2, z/2]) is the sigmoid of z.
    return np.stack([-weight / 2, weight / 2]).astype(np.float32), np.array(
        [-bias / 2, bias / 2], dtype=np.float32
    )
